"""Full attention: a block for every token, for as long as the request lives."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import takewhile
from typing import ClassVar

from corefw.interfaces.kv_cache import FullAttentionSpec, KVCacheSpec, KVCacheSpecPlugin

__all__ = ["FullAttention"]


class FullAttention(KVCacheSpecPlugin):
    """Manages ``FullAttentionSpec``. A layer's own window doesn't matter here: it keeps every token all the same."""

    spec_class: ClassVar[type[KVCacheSpec]] = FullAttentionSpec

    def num_blocks_for(self, spec: KVCacheSpec, num_tokens: int) -> int:
        return -(-num_tokens // spec.block_size)

    def reusable_prefix_blocks(self, spec: KVCacheSpec, cached: Sequence[bool], max_tokens: int) -> int:
        limit = min(len(cached), max_tokens // spec.block_size)
        return sum(1 for _ in takewhile(lambda index: cached[index], range(limit)))

    def skippable_blocks(self, spec: KVCacheSpec, num_computed_tokens: int) -> int:
        del spec, num_computed_tokens
        return 0

    def group_key(self, spec: KVCacheSpec) -> Hashable:
        return type(self), spec.block_size, spec.tokens_per_state
