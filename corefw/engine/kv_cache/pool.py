"""The pool of KV blocks: who holds a block, what is in it, which one is reused next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from corefw.engine.kv_cache.block import FreeBlockQueue, KVCacheBlock
from corefw.engine.kv_cache.hash_map import BlockHashMap
from corefw.engine.kv_cache.hashing import split_cache_key
from corefw.errors import EngineError
from corefw.messages.kv_events import BlockRemoved, CacheCleared, KVEvent

__all__ = ["BlockPool", "KVEventListener"]

KVEventListener = Callable[[KVEvent], None]


class BlockPool:
    """All blocks of the cache. Block 0 is the null block: it fills table entries that need no block.

    A cached block that nobody holds is free and still found by its key, until it is reused for something else.

    Args:
        num_blocks: the null block included.
        listeners: told when contents become findable for the first time and when they no longer are; they must be
            quick, must not raise and must not call back.
        make_queue: the list of free blocks, all in it at first; it decides which one is reused next.
    """

    def __init__(
        self,
        num_blocks: int,
        listeners: Sequence[KVEventListener] = (),
        make_queue: Callable[[list[KVCacheBlock]], FreeBlockQueue] = FreeBlockQueue,
    ) -> None:
        if num_blocks < 2:
            raise EngineError(f"a block pool needs 2 blocks, one of them the null block; got {num_blocks}")
        self.null_block = KVCacheBlock(0, is_null=True)
        self.blocks = [self.null_block, *(KVCacheBlock(block_id) for block_id in range(1, num_blocks))]
        self._free = make_queue(self.blocks[1:])
        self._cached = BlockHashMap()
        self._listeners = tuple(listeners)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds, cached ones included."""
        return len(self._free)

    @property
    def num_used_blocks(self) -> int:
        """Blocks that somebody holds."""
        return len(self.blocks) - 1 - len(self._free)

    @property
    def usage(self) -> float:
        """Share of blocks in use, 0 to 1."""
        return self.num_used_blocks / (len(self.blocks) - 1)

    def free_block_ids(self) -> list[int]:
        """Free blocks in the order in which they will be reused."""
        return [block.block_id for block in self._free]

    def allocate(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take blocks out of the free list; what the cache knew of them is forgotten.

        Raises:
            EngineError: there aren't so many (the caller asks ``num_free_blocks`` first).
        """
        if num_blocks > len(self._free):
            raise EngineError(f"{num_blocks} KV blocks wanted, {len(self._free)} are free")
        taken = self._free.pop_many(num_blocks)
        for block in taken:
            if block.cache_key is not None:
                self._forget(block)
            block.ref_count = 1
        return taken

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Hold blocks that the cache found."""
        for block in blocks:
            if block.is_null:
                continue
            if block.ref_count == 0:
                self._free.remove(block)
            block.ref_count += 1

    def free(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Let go of blocks, given in the order in which they should be reused.

        Those without contents worth keeping are reused first, the last freed one before the others (it is warm);
        cached ones queue up behind all that are free already.
        """
        for block in blocks:
            if block.is_null:
                continue
            if block.ref_count < 1:
                raise EngineError(f"KV block {block.block_id} was freed once too often")
            block.ref_count -= 1
            if block.ref_count > 0:
                continue
            if block.cache_key is None:
                self._free.prepend(block)
            else:
                self._free.append(block)

    def cache(self, block: KVCacheBlock, key: bytes) -> bool:
        """Make a full, computed block findable. A key it had before (a part of a block) is replaced.

        Returns:
            Whether no block with those contents was findable before.
        """
        if block.is_null or block.cache_key == key:
            return False
        if block.cache_key is not None:
            self._forget(block)
        block.cache_key = key
        return self._cached.add(key, block)

    def lookup(self, key: bytes) -> KVCacheBlock | None:
        """A block with those contents, if there is one."""
        return self._cached.get(key)

    def reset_cache(self) -> bool:
        """Forget all contents. False (and nothing done) while somebody holds a block."""
        if self.num_used_blocks:
            return False
        for block in self.blocks:
            block.cache_key = None
        self._cached.clear()
        self._free.cleared()
        self.tell(CacheCleared())
        return True

    @property
    def has_listeners(self) -> bool:
        """Whether events are worth making."""
        return bool(self._listeners)

    def tell(self, event: KVEvent) -> None:
        """Let the listeners know."""
        for listener in self._listeners:
            listener(event)

    def _forget(self, block: KVCacheBlock) -> None:
        key = block.cache_key
        if key is None:
            return
        block.cache_key = None
        if self._cached.discard(key, block) and self._listeners:
            block_hash, group_id = split_cache_key(key)
            self.tell(BlockRemoved(block_hash=block_hash, group=group_id))
