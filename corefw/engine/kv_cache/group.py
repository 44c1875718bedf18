"""The block tables of one KV-cache group: layers that share a spec's layout and therefore a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corefw.engine.kv_cache.block import KVCacheBlock
from corefw.engine.kv_cache.hashing import ScaledHashes, cache_key
from corefw.engine.kv_cache.pool import BlockPool
from corefw.engine.request import Request
from corefw.errors import EngineError
from corefw.interfaces.kv_cache import KVCacheSpec, KVCacheSpecPlugin
from corefw.messages.kv_events import BlockStored

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


@dataclass(slots=True)
class _Table:
    """One request's blocks, in token order.

    Attributes:
        blocks: of the pool, the null block in place of those that were given back or never needed.
        num_null: leading entries that are the null block.
        num_cached: leading entries that are findable, or were when they were held.
    """

    blocks: list[KVCacheBlock]
    num_null: int = 0
    num_cached: int = 0


class KVCacheGroup:
    """Block tables by request.

    Args:
        group_id: position of the group in the plan.
        spec: the layout of its blocks.
        plugin: answers what depends on the kind of layer.
        pool: where the blocks come from.
        hash_block_size: tokens a hash of the requests' chains; divides the spec's block size.
        max_step_tokens: tokens of a step at most.
    """

    def __init__(
        self,
        group_id: int,
        spec: KVCacheSpec,
        plugin: KVCacheSpecPlugin,
        pool: BlockPool,
        hash_block_size: int,
        max_step_tokens: int,
    ) -> None:
        self.spec = spec
        self._group_id = group_id
        self._plugin = plugin
        self._pool = pool
        self._scale = spec.block_size // hash_block_size
        self._max_step_tokens = max_step_tokens
        self._tables: dict[str, _Table] = {}

    def block_ids(self, request_id: str) -> list[int]:
        """The request's table."""
        table = self._tables.get(request_id)
        return [block.block_id for block in table.blocks] if table else []

    def held_blocks(self, request_id: str) -> list[KVCacheBlock]:
        """The blocks that the request holds; the null block isn't one."""
        table = self._tables.get(request_id)
        return table.blocks[table.num_null :] if table else []

    def num_slots(self, request_id: str) -> int:
        """Tokens that the request's table has room for."""
        return len(self._tables[request_id].blocks) * self.spec.block_size

    def num_missing_blocks(self, request_id: str, num_tokens: int, hit: Sequence[KVCacheBlock] = ()) -> int:
        """New blocks that the request needs now to hold that many tokens, besides those that the cache gives."""
        table = self._tables.get(request_id)
        held = (len(table.blocks) if table else 0) + len(hit)
        return max(0, self._plugin.num_blocks_for(self.spec, num_tokens) - held)

    def num_blocks_to_come(self, request_id: str, num_tokens: int, hit: Sequence[KVCacheBlock] = ()) -> int:
        """New blocks that the request will hold besides its present ones, at most, while it grows to that length.

        Unlike what is missing now this counts on blocks that are given back on the way.
        """
        table = self._tables.get(request_id)
        num_used = sum(not block.is_null for block in hit) + (len(table.blocks) - table.num_null if table else 0)
        peak = self._plugin.max_blocks_held(self.spec, num_tokens, self._max_step_tokens)
        return min(self.num_missing_blocks(request_id, num_tokens, hit), max(0, peak - num_used))

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
        assert request_id not in self._tables, "a hit can only be the beginning of a table"
        self._pool.touch(blocks)
        num_null = sum(block.is_null for block in blocks)
        self._tables[request_id] = _Table(list(blocks), num_null=num_null, num_cached=len(blocks))

    def grow(self, request_id: str, num_tokens: int) -> list[int]:
        """Add the blocks that are missing for that many tokens; the caller made sure that they are free."""
        blocks = self._pool.allocate(self.num_missing_blocks(request_id, num_tokens))
        table = self._tables.setdefault(request_id, _Table([]))
        table.blocks += blocks
        return [block.block_id for block in blocks]

    def drop_unread(self, request_id: str, num_computed_tokens: int) -> None:
        """Give back leading blocks that no later token reads."""
        num_unread = self._plugin.skippable_blocks(self.spec, num_computed_tokens)
        table = self._tables.get(request_id)
        if table is None or num_unread <= table.num_null:
            return
        dropped = table.blocks[table.num_null : num_unread]
        table.blocks[table.num_null : num_unread] = [self._pool.null_block] * len(dropped)
        table.num_null += len(dropped)
        self._pool.free(dropped[::-1])

    def cache_full_blocks(self, request: Request) -> None:
        """Make the full blocks of the computed tokens findable."""
        table = self._tables[request.request_id]
        end = request.num_computed_tokens // self.spec.block_size
        if end <= table.num_cached:
            return
        keys, pool = self._group_hashes(request.block_hashes), self._pool
        for index in range(table.num_cached, end):
            is_new = pool.cache(table.blocks[index], cache_key(keys[index], self._group_id))
            if is_new and pool.has_listeners:
                self._tell_stored(request, keys, index)
        table.num_cached = end

    def free(self, request_id: str) -> None:
        """Give back the request's blocks, the last one first: of a prefix, the end is evicted first."""
        table = self._tables.pop(request_id, None)
        if table:
            self._pool.free(table.blocks[table.num_null :][::-1])

    def _tell_stored(self, request: Request, keys: Sequence[bytes], index: int) -> None:
        start = index * self.spec.block_size
        event = BlockStored(
            block_hash=keys[index],
            parent_hash=keys[index - 1] if index else None,
            token_ids=request.token_ids[start : start + self.spec.block_size],
            group=self._group_id,
        )
        self._pool.tell(event)

    def _group_hashes(self, hashes: Sequence[bytes]) -> Sequence[bytes]:
        return hashes if self._scale == 1 else ScaledHashes(hashes, self._scale)
