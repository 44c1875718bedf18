"""A sliding window: blocks that no later token reads are given back while the request runs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar

from corefw.errors import PluginError
from corefw.interfaces.kv_cache import KVCacheSpec, KVCacheSpecPlugin, SlidingWindowSpec

__all__ = ["SlidingWindow"]


class SlidingWindow(KVCacheSpecPlugin):
    """Manages ``SlidingWindowSpec``: token t reads the ``sliding_window`` tokens up to and with itself."""

    spec_class: ClassVar[type[KVCacheSpec]] = SlidingWindowSpec

    def num_blocks_for(self, spec: KVCacheSpec, num_tokens: int) -> int:
        return -(-num_tokens // spec.block_size)

    def reusable_prefix_blocks(self, spec: KVCacheSpec, cached: Sequence[bool], max_tokens: int) -> int:
        """Only the blocks that the next token reads have to be there.

        Looks from the end: where a block is missing, the prefix can't reach beyond that block's start.
        """
        end = index = min(len(cached), max_tokens // spec.block_size)
        while index > self.skippable_blocks(spec, end * spec.block_size):
            index -= 1
            if not cached[index]:
                end = index
        return end

    def skippable_blocks(self, spec: KVCacheSpec, num_computed_tokens: int) -> int:
        # The next token stands at num_computed_tokens and reads itself and the window - 1 tokens before it.
        return max(0, num_computed_tokens + 1 - _window(spec)) // spec.block_size

    def max_blocks_held(self, spec: KVCacheSpec, num_tokens: int, max_step_tokens: int) -> int:
        # A step's own tokens and what the first of them reads; one more, since that needn't begin where a block does.
        in_step = -(-(_window(spec) - 1 + max_step_tokens) // spec.block_size) + 1
        return min(self.num_blocks_for(spec, num_tokens), in_step)

    def group_key(self, spec: KVCacheSpec) -> Hashable:
        return type(self), spec.block_size, spec.tokens_per_state, _window(spec)


def _window(spec: KVCacheSpec) -> int:
    if not isinstance(spec, SlidingWindowSpec):
        raise PluginError(f"KV-cache spec plugin sliding_window serves SlidingWindowSpec, not {type(spec).__name__}")
    return spec.sliding_window
