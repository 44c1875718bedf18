"""KV-cache specs for tests: full attention in small blocks, and a window whose older blocks are dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from corefw.builtins.kv_cache_specs.full_attention import FullAttention
from corefw.engine.kv_cache.specs import SpecRegistry
from corefw.interfaces.kv_cache import FullAttentionSpec, KVCacheSpec, KVCacheSpecPlugin


def full_spec(block_size: int = 4, num_kv_heads: int = 1) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block_size, num_kv_heads=num_kv_heads, head_size=2, dtype="float32")


@dataclass(frozen=True, kw_only=True)
class WindowSpec(KVCacheSpec):
    window: int

    @property
    def page_bytes(self) -> int:
        return self.block_size * 16

    def max_memory_bytes(self, max_model_len: int) -> int:
        return self.page_bytes * -(-max_model_len // self.block_size)


@dataclass(frozen=True, kw_only=True)
class WiderWindowSpec(WindowSpec):
    """Has no plugin of its own."""


class Window(KVCacheSpecPlugin):
    """Token t reads the ``window`` tokens up to and with itself."""

    spec_class: ClassVar[type[KVCacheSpec]] = WindowSpec

    def num_blocks_for(self, spec: KVCacheSpec, num_tokens: int) -> int:
        return -(-num_tokens // spec.block_size)

    def reusable_prefix_blocks(self, spec: KVCacheSpec, cached: Sequence[bool], max_tokens: int) -> int:
        for end in range(min(len(cached), max_tokens // spec.block_size), 0, -1):
            first = self.skippable_blocks(spec, end * spec.block_size)
            if all(cached[index] for index in range(first, end)):
                return end
        return 0

    def skippable_blocks(self, spec: KVCacheSpec, num_computed_tokens: int) -> int:
        assert isinstance(spec, WindowSpec)
        return max(0, num_computed_tokens + 1 - spec.window) // spec.block_size


def registry() -> SpecRegistry:
    return SpecRegistry([FullAttention(), Window()])
