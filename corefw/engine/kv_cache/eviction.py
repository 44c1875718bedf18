"""The list of free blocks where a plugin chooses which cached one is reused."""

from __future__ import annotations

from corefw.engine.kv_cache.block import FreeBlockQueue, KVCacheBlock
from corefw.engine.kv_cache.hashing import split_cache_key
from corefw.interfaces.hooks.kv import EvictionPolicy, ReusableBlock
from corefw.plugin_system.observers import ObserverCalls

__all__ = ["PolicyQueue"]


class PolicyQueue(FreeBlockQueue):
    """Empty blocks first; then the policy's choice, or the block unused for longest where the policy fails."""

    def __init__(self, blocks: list[KVCacheBlock], policy: ObserverCalls[EvictionPolicy]) -> None:
        self._by_id = {block.block_id: block for block in blocks}
        self._policy = policy
        super().__init__(blocks)

    def pop(self) -> KVCacheBlock:
        # Empty blocks stand before cached ones, so that a cached head means that no empty one is left.
        head = self._head.next_free
        assert head is not None
        chosen = None if head.cache_key is None else self._policy.run_as("choose", self._choose)
        if chosen is None:
            return super().pop()
        self.remove(chosen)
        return chosen

    def pop_many(self, num_blocks: int) -> list[KVCacheBlock]:
        return [self.pop() for _ in range(num_blocks)]

    def remove(self, block: KVCacheBlock) -> None:
        super().remove(block)
        if block.cache_key is not None:
            self._policy.run("removed", block.block_id)

    def append(self, block: KVCacheBlock) -> None:
        super().append(block)
        if block.cache_key is not None:
            self._policy.run("added", ReusableBlock(block.block_id, *split_cache_key(block.cache_key)))

    def cleared(self) -> None:
        """Note that all blocks are empty now."""
        self._policy.run("cleared")

    def _choose(self) -> KVCacheBlock:
        block_id = self._policy.value.choose()
        block = self._by_id.get(block_id)
        if block is None or block.next_free is None or block.cache_key is None:
            raise ValueError(f"it chose block {block_id!r}, which isn't one of the free cached ones")
        return block
