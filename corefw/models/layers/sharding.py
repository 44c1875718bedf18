"""Which part of a dimension a rank holds.

The rule: parts are contiguous, in rank order; whole units (a KV group, else one element) are dealt out evenly and the
first ranks get the units left over. Query heads follow their KV head, so 9 query and 3 KV heads over 2 ranks are 6 + 3
and 2 + 1. Where there are more ranks than KV heads, each rank has one KV head, neighbours have the same one, and its
query heads are dealt out among them. The vocabulary is the exception: every rank has ⌈V/size⌉ rows, the last ones
partly padding, because logits are gathered in equal pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

from corefw.errors import ConfigError
from corefw.models.layers.context import TensorParallel

__all__ = ["Split", "split_evenly", "split_heads", "split_padded"]


@dataclass(frozen=True, slots=True)
class Split:
    """One rank's part of a dimension of ``total`` elements.

    Attributes:
        start: its first element.
        size: elements it holds.
        total: elements of all ranks.
        padded_size: what it allocates; more than ``size`` only where ranks must be equal.
    """

    start: int
    size: int
    total: int
    padded_size: int

    def scaled(self, factor: int) -> Split:
        """The same part of a dimension with ``factor`` elements for each of this one."""
        return Split(self.start * factor, self.size * factor, self.total * factor, self.padded_size * factor)


def split_evenly(what: str, total: int, tp: TensorParallel) -> Split:
    """This rank's part, the first ranks getting one more.

    Raises:
        ConfigError: there are more ranks than elements.
    """
    if total < tp.size:
        raise ConfigError(f"{what} ({total}) can't be split over {tp.size} tensor-parallel ranks; use at most {total}")
    each, over = divmod(total, tp.size)
    size = each + (tp.rank < over)
    return Split(tp.rank * each + min(tp.rank, over), size, total, size)


def split_heads(num_heads: int, num_kv_heads: int, tp: TensorParallel) -> tuple[Split, Split]:
    """This rank's query heads, and the KV heads that they read.

    Raises:
        ConfigError: there are more ranks than query heads.
    """
    heads_per_group = num_heads // num_kv_heads
    if tp.size <= num_kv_heads:
        groups = split_evenly("KV heads", num_kv_heads, tp)
        return groups.scaled(heads_per_group), groups
    if tp.size > num_heads:
        split_evenly("attention heads", num_heads, tp)
    ranks = (split_evenly("ranks", tp.size, TensorParallel(head, num_kv_heads)) for head in range(num_kv_heads))
    kv_head, owners = next((head, each) for head, each in enumerate(ranks) if tp.rank < each.start + each.size)
    own = split_evenly("query heads", heads_per_group, TensorParallel(tp.rank - owners.start, owners.size))
    query = Split(kv_head * heads_per_group + own.start, own.size, num_heads, own.size)
    return query, Split(kv_head, 1, num_kv_heads, 1)


def split_padded(total: int, tp: TensorParallel) -> Split:
    """This rank's part where all ranks allocate the same."""
    each = -(-total // tp.size)
    start = min(tp.rank * each, total)
    return Split(start, min(each, total - start), total, each)
