"""The block tables of one KV-cache group: layers that share a spec's layout and therefore a table."""

from __future__ import annotations

from collections.abc import Sequence

from corefw.engine.kv_cache.block import KVCacheBlock
from corefw.engine.kv_cache.hashing import ScaledHashes, cache_key
from corefw.engine.kv_cache.pool import BlockPool
from corefw.errors import EngineError
from corefw.interfaces.kv_cache import KVCacheSpec, KVCacheSpecPlugin

__all__ = ["KVCacheGroup"]


class _CachedFlags(Sequence[bool]):
    """For each full block of a prefix whether the cache holds it; looked up only when asked."""

    def __init__(self, pool: BlockPool, keys: Sequence[bytes], group_id: int) -> None:
        self._pool = pool
        self._hashes = keys
        self._group_id = group_id

    def __len__(self) -> int:
        return len(self._hashes)

    def __getitem__(self, index: int | slice) -> bool:  # type: ignore[override]  # a slice is never asked for
        assert isinstance(index, int)
        return self._pool.lookup(cache_key(self._hashes[index], self._group_id)) is not None


class KVCacheGroup:
    """Block tables by request. Every entry is a block of the pool or the null block.

    Args:
        group_id: position of the group in the plan.
        spec: the layout of its blocks.
        plugin: answers what depends on the kind of layer.
        pool: where the blocks come from.
        hash_block_size: tokens a hash of the requests' chains; divides the spec's block size.
    """

    def __init__(
        self, group_id: int, spec: KVCacheSpec, plugin: KVCacheSpecPlugin, pool: BlockPool, hash_block_size: int
    ) -> None:
        self.spec = spec
        self._group_id = group_id
        self._plugin = plugin
        self._pool = pool
        self._scale = spec.block_size // hash_block_size
        self._tables: dict[str, list[KVCacheBlock]] = {}
        self._num_cached: dict[str, int] = {}

    def block_ids(self, request_id: str) -> list[int]:
        """The request's table."""
        return [block.block_id for block in self._tables.get(request_id, ())]

    def num_blocks_for(self, num_tokens: int) -> int:
        """Table entries of a sequence of that length."""
        return self._plugin.num_blocks_for(self.spec, num_tokens)

    def num_missing_blocks(self, request_id: str, num_tokens: int, num_hit_blocks: int = 0) -> int:
        """New blocks that the request needs to hold that many tokens, besides those that the cache gives."""
        held = len(self._tables.get(request_id, ())) + num_hit_blocks
        return max(0, self._plugin.num_blocks_for(self.spec, num_tokens) - held)

    def longest_hit_tokens(self, hashes: Sequence[bytes], max_tokens: int) -> int:
        """Leading tokens that this group could take from the cache, at most ``max_tokens``."""
        keys = self._group_hashes(hashes)
        flags = _CachedFlags(self._pool, keys, self._group_id)
        num_blocks = self._plugin.reusable_prefix_blocks(self.spec, flags, max_tokens)
        return min(num_blocks, len(keys), max_tokens // self.spec.block_size) * self.spec.block_size

    def hit_blocks(self, hashes: Sequence[bytes], num_tokens: int) -> list[KVCacheBlock]:
        """The blocks of a hit of that length; null blocks where nothing will be read.

        Raises:
            EngineError: one isn't cached, though the plugin counted on it.
        """
        keys = self._group_hashes(hashes)
        num_blocks = num_tokens // self.spec.block_size
        num_unread = min(num_blocks, self._plugin.skippable_blocks(self.spec, num_tokens))
        blocks = [self._pool.null_block] * num_unread
        for index in range(num_unread, num_blocks):
            block = self._pool.lookup(cache_key(keys[index], self._group_id))
            if block is None:
                raise EngineError(f"{type(self._plugin).__name__} reused block {index}, which isn't cached")
            blocks.append(block)
        return blocks

    def take_hit(self, request_id: str, blocks: list[KVCacheBlock]) -> None:
        """Start the request's table with blocks from the cache."""
        assert not self._tables.get(request_id), "a hit can only be the beginning of a table"
        self._pool.touch(blocks)
        self._tables[request_id] = list(blocks)
        self._num_cached[request_id] = len(blocks)

    def grow(self, request_id: str, num_tokens: int) -> list[int]:
        """Add the blocks that are missing for that many tokens; the caller made sure that they are free."""
        num_blocks = self.num_missing_blocks(request_id, num_tokens)
        if num_blocks == 0:
            return []
        blocks = self._pool.allocate(num_blocks)
        self._tables.setdefault(request_id, []).extend(blocks)
        return [block.block_id for block in blocks]

    def drop_unread(self, request_id: str, num_computed_tokens: int) -> None:
        """Give back leading blocks that no later token reads."""
        table = self._tables.get(request_id)
        num_unread = self._plugin.skippable_blocks(self.spec, num_computed_tokens)
        if not table or num_unread == 0:
            return
        dropped = []
        for index in range(min(num_unread, len(table)) - 1, -1, -1):
            if table[index].is_null:
                break
            dropped.append(table[index])
            table[index] = self._pool.null_block
        self._pool.free(dropped)

    def cache_full_blocks(self, request_id: str, hashes: Sequence[bytes], num_computed_tokens: int) -> None:
        """Make the full blocks of the computed tokens findable."""
        table = self._tables[request_id]
        first, end = self._num_cached.get(request_id, 0), num_computed_tokens // self.spec.block_size
        if end <= first:
            return
        keys = self._group_hashes(hashes)
        for index in range(first, end):
            self._pool.cache(table[index], cache_key(keys[index], self._group_id))
        self._num_cached[request_id] = end

    def free(self, request_id: str) -> None:
        """Give back the request's blocks, the last one first: of a prefix, the end is evicted first."""
        self._num_cached.pop(request_id, None)
        self._pool.free(self._tables.pop(request_id, [])[::-1])

    def _group_hashes(self, hashes: Sequence[bytes]) -> Sequence[bytes]:
        return hashes if self._scale == 1 else ScaledHashes(hashes, self._scale)
