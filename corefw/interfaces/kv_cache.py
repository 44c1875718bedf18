"""KV-cache specs and managers: how a layer's state is laid out in pages, and how blocks of such pages are managed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

__all__ = [
    "DTYPE_BYTES",
    "INT8_SCALE_BYTES",
    "AttentionSpec",
    "FullAttentionSpec",
    "KVCacheSpec",
    "KVCacheSpecPlugin",
    "SlidingWindowSpec",
]

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "uint8": 1}
INT8_SCALE_BYTES = 4  # a float32


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
        """Bytes that one request of that length needs in one layer at most."""


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(KVCacheSpec):
    """Keys and values of tokens, laid out in pages. Which tokens are kept is a subclass's matter.

    Attributes:
        num_kv_heads: on this rank.
        head_size: elements a head.
        dtype: name of the stored dtype; with ``int8`` every token's key and value of every head have a scale each.
    """

    num_kv_heads: int
    head_size: int
    dtype: str

    @property
    def head_bytes(self) -> int:
        """Bytes of one token's key and value of one head, their scales included."""
        scales = 2 * INT8_SCALE_BYTES if self.dtype == "int8" else 0
        return 2 * self.head_size * DTYPE_BYTES[self.dtype] + scales

    @property
    def page_bytes(self) -> int:
        states = self.block_size / Fraction(self.tokens_per_state)
        return int(states * self.num_kv_heads * self.head_bytes)

    def max_memory_bytes(self, max_model_len: int) -> int:
        num_blocks = -(-max_model_len // self.block_size)
        return num_blocks * self.page_bytes


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(AttentionSpec):
    """Keys and values of every token.

    Attributes:
        sliding_window: set when the layer attends to a window but the allocator keeps every token.
    """

    sliding_window: int | None = None


@dataclass(frozen=True, kw_only=True)
class SlidingWindowSpec(AttentionSpec):
    """Keys and values of the tokens that a later token may still read; older blocks are given back.

    Attributes:
        sliding_window: tokens that a query sees, its own included.
    """

    sliding_window: int


class KVCacheSpecPlugin(ABC):
    """Ties a spec class to the manager that allocates its blocks (group ``corefw.kv_cache_specs``).

    The registry looks a spec's class up along its MRO, so a subclass of a registered spec needs no entry of its own;
    a spec without any registered ancestor stops the start.

    Attributes:
        spec_class: the spec that this plugin serves.
    """

    spec_class: ClassVar[type[KVCacheSpec]]
    api_version: ClassVar[int] = 1

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

    def max_blocks_held(self, spec: KVCacheSpec, num_tokens: int, max_step_tokens: int) -> int:
        """Blocks that a request holds at once at most while it grows to that many tokens.

        Args:
            spec: the group's spec.
            num_tokens: the length in the end.
            max_step_tokens: tokens that one step computes at most; blocks are given back between steps.
        """
        del max_step_tokens
        return self.num_blocks_for(spec, num_tokens)

    def group_key(self, spec: KVCacheSpec) -> Hashable:
        """Layers whose specs have equal keys share one KV-cache group, that is one block table. Default: the spec."""
        return spec
