"""KV-cache specs and managers: how a layer's state is laid out in pages, and how blocks of such pages are managed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

__all__ = ["DTYPE_BYTES", "FullAttentionSpec", "KVCacheSpec", "KVCacheSpecPlugin"]

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "uint8": 1}


@dataclass(frozen=True, kw_only=True)
class KVCacheSpec(ABC):
    """What one layer keeps per block. Frozen, so that scheduler, manager and worker can't disagree.

    Attributes:
        block_size: tokens a block.
        tokens_per_state: how many tokens one state covers; a fraction where a token has several states.
    """

    block_size: int
    tokens_per_state: int | Fraction = 1

    @property
    @abstractmethod
    def page_bytes(self) -> int:
        """Bytes that one block takes in one layer."""

    @abstractmethod
    def max_memory_bytes(self, max_model_len: int) -> int:
        """Bytes that one request of that length needs in one layer."""


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(KVCacheSpec):
    """Keys and values of every token.

    Attributes:
        num_kv_heads: on this rank.
        head_size: elements a head.
        dtype: name of the stored dtype.
        sliding_window: set when the layer attends to a window but the allocator keeps every token.
    """

    num_kv_heads: int
    head_size: int
    dtype: str
    sliding_window: int | None = None

    @property
    def page_bytes(self) -> int:
        states = self.block_size / Fraction(self.tokens_per_state)
        return int(states * 2 * self.num_kv_heads * self.head_size * DTYPE_BYTES[self.dtype])

    def max_memory_bytes(self, max_model_len: int) -> int:
        num_blocks = -(-max_model_len // self.block_size)
        return num_blocks * self.page_bytes


class KVCacheSpecPlugin(ABC):
    """Ties a spec class to the manager that allocates its blocks (group ``corefw.kv_cache_specs``).

    The registry looks a spec's class up along its MRO, so a subclass of a registered spec needs no entry of its own;
    a spec without any registered ancestor stops the start.

    Attributes:
        spec_class: the spec that this plugin serves.
    """

    spec_class: ClassVar[type[KVCacheSpec]]

    @abstractmethod
    def num_blocks_for(self, spec: KVCacheSpec, num_tokens: int) -> int:
        """Entries of the block table that a sequence of that many tokens needs."""

    @abstractmethod
    def reusable_prefix_blocks(self, spec: KVCacheSpec, cached: Sequence[bool], max_tokens: int) -> int:
        """How many leading blocks can be taken from the cache.

        Args:
            spec: the group's spec.
            cached: for each full block of the prompt, from the first, whether the cache holds it.
            max_tokens: never take more tokens than this.
        """

    @abstractmethod
    def skippable_blocks(self, spec: KVCacheSpec, num_computed_tokens: int) -> int:
        """How many leading blocks no later token will read (0 for full attention)."""

    def group_key(self, spec: KVCacheSpec) -> Hashable:
        """Layers whose specs have equal keys share one KV-cache group, that is one block table. Default: the spec."""
        return spec
