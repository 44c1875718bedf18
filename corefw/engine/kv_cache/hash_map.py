"""Which blocks hold which contents."""

from __future__ import annotations

from corefw.engine.kv_cache.block import KVCacheBlock

__all__ = ["BlockHashMap"]


class BlockHashMap:
    """Cache key → the blocks with those contents.

    Nearly every key has one block, which then stands in the table itself: no dict a key, nothing for the garbage
    collector to walk. Two requests that computed the same prefix at the same time make it a dict by block id.
    """

    def __init__(self) -> None:
        self._entries: dict[bytes, KVCacheBlock | dict[int, KVCacheBlock]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> KVCacheBlock | None:
        """Any block with those contents."""
        entry = self._entries.get(key)
        if isinstance(entry, dict):
            return next(iter(entry.values()))
        return entry

    def add(self, key: bytes, block: KVCacheBlock) -> bool:
        """Note that the block has those contents. Whether it is the only one that has."""
        entry = self._entries.get(key)
        if entry is None or entry is block:
            self._entries[key] = block
            return True
        if isinstance(entry, dict):
            entry[block.block_id] = block
        else:
            self._entries[key] = {entry.block_id: entry, block.block_id: block}
        return False

    def discard(self, key: bytes, block: KVCacheBlock) -> bool:
        """Forget that the block has those contents. Whether it was the only one that had."""
        entry = self._entries.get(key)
        if entry is block:
            del self._entries[key]
            return True
        if isinstance(entry, dict):
            entry.pop(block.block_id, None)
            if len(entry) == 1:
                self._entries[key] = next(iter(entry.values()))
        return False

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
