"""Which part of a dimension a rank holds.

The rule: parts are contiguous, in rank order; whole units (a KV group, else one element) are dealt out evenly and the
first ranks get the units left over. Query heads follow their KV head, so 9 query and 3 KV heads over 2 ranks are 6 + 3
and 2 + 1. The vocabulary is the exception: every rank has ⌈V/size⌉ rows, the last ones partly padding, because logits
are gathered in equal pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

from corefw.errors import ConfigError
from corefw.models.layers.context import TensorParallel

__all__ = ["Split", "split_evenly", "split_padded"]


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


def split_padded(total: int, tp: TensorParallel) -> Split:
    """This rank's part where all ranks allocate the same."""
    each = -(-total // tp.size)
    start = min(tp.rank * each, total)
    return Split(start, min(each, total - start), total, each)
