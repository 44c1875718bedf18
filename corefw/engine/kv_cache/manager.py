"""KV blocks for the scheduler: prefix hits, slots for the next tokens, all groups at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from corefw.engine.kv_cache.block import FreeBlockQueue, KVCacheBlock
from corefw.engine.kv_cache.eviction import PolicyQueue
from corefw.engine.kv_cache.group import KVCacheGroup
from corefw.engine.kv_cache.hashing import BlockHasher
from corefw.engine.kv_cache.pool import BlockPool, KVEventListener
from corefw.engine.kv_cache.specs import SpecRegistry
from corefw.engine.request import Request
from corefw.errors import ConfigError
from corefw.interfaces.hooks.kv import EvictionPolicy
from corefw.interfaces.kv_cache import KVCacheSpec
from corefw.plugin_system.observers import ObserverCalls

__all__ = ["KVCacheManager", "PrefixHit"]


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """A prefix found in the cache. Nothing is held yet.

    Attributes:
        num_tokens: its length.
        blocks: one list a group.
        num_external: tokens behind it that needn't be computed either: a KV connector brings them, or has brought them.
    """

    num_tokens: int
    blocks: tuple[list[KVCacheBlock], ...]
    num_external: int = 0

    @property
    def num_computed_tokens(self) -> int:
        """Where computing starts."""
        return self.num_tokens + self.num_external


class KVCacheManager:
    """Block tables of all requests over all KV-cache groups, out of one pool.

    Args:
        specs: one a group.
        registry: finds each spec's plugin.
        num_blocks: of the pool, the null block included.
        hasher: makes the requests' hash chains; None switches prefix caching off.
        max_step_tokens: tokens of all steps that are on their way at once, at most.
        listeners: told what the prefix cache does.
        eviction: chooses which cached block is reused; None: the one unused for longest.

    Raises:
        ConfigError: a group's block size isn't a multiple of the hash's, or its spec has no plugin.
    """

    def __init__(
        self,
        specs: Sequence[KVCacheSpec],
        registry: SpecRegistry,
        num_blocks: int,
        hasher: BlockHasher | None,
        *,
        max_step_tokens: int,
        listeners: Sequence[KVEventListener] = (),
        eviction: ObserverCalls[EvictionPolicy] | None = None,
    ) -> None:
        make_queue = partial(PolicyQueue, policy=eviction) if eviction else FreeBlockQueue
        self.pool = BlockPool(num_blocks, listeners, make_queue)
        self._hasher = hasher
        self._max_step_tokens = max_step_tokens
        self._groups = tuple(self._make_group(index, spec, registry) for index, spec in enumerate(specs))
        self._no_hit = PrefixHit(0, tuple([] for _ in self._groups))
        # Shared by all answers; a scheduler's words are never changed.
        self._no_new_blocks: list[list[int]] = [[] for _ in self._groups]

    def _make_group(self, group_id: int, spec: KVCacheSpec, registry: SpecRegistry) -> KVCacheGroup:
        hash_block_size = self._hasher.block_size if self._hasher else spec.block_size
        if spec.block_size % hash_block_size:
            raise ConfigError(
                f"KV-cache group {group_id} has blocks of {spec.block_size} tokens, which is no multiple of the "
                f"{hash_block_size} tokens that are hashed together"
            )
        return KVCacheGroup(group_id, spec, registry.resolve(spec), self.pool, hash_block_size, self._max_step_tokens)

    @property
    def caches_prefixes(self) -> bool:
        """Whether prefixes are shared."""
        return self._hasher is not None

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        """The longest prefix that every group has, short of the last token: at least one token must be computed."""
        if request.num_computed_tokens:  # its blocks were filled while it waited
            return replace(self._no_hit, num_external=request.num_computed_tokens)
        if self._hasher is None or not request.reads_prefix_cache:
            return self._no_hit
        self._hasher.extend(request)
        num_tokens = self._longest_common_hit(request)
        if num_tokens == 0:
            return self._no_hit
        blocks = tuple(group.hit_blocks(request.block_hashes, num_tokens) for group in self._groups)
        return PrefixHit(num_tokens, blocks)

    def _longest_common_hit(self, request: Request) -> int:
        # A shorter prefix may suit a group less well (a window needs its own last blocks), so ask until all agree.
        limit, agreed = request.num_tokens - 1, -1
        while limit != agreed:
            agreed = limit
            for group in self._groups:
                limit = group.longest_hit_tokens(request.block_hashes, limit)
            if len(self._groups) == 1:
                break
        return limit

    def num_blocks_wanted(self, request: Request, num_tokens: int, hit: PrefixHit | None = None) -> int:
        """Free blocks that it takes now to let the request hold that many tokens, with cached ones that are free."""
        if hit is None:
            return sum([group.num_missing_blocks(request.request_id, num_tokens) for group in self._groups])
        groups = zip(self._groups, hit.blocks, strict=True)
        missing = sum(group.num_missing_blocks(request.request_id, num_tokens, blocks) for group, blocks in groups)
        return missing + _num_revived(hit.blocks)

    def num_blocks_to_come(self, request: Request, hit: PrefixHit | None = None) -> int:
        """Free blocks that it takes at most until all known tokens of the request are computed."""
        if hit is None and request.num_slots >= len(request.token_ids):
            return 0
        found = (hit or self._no_hit).blocks
        groups = zip(self._groups, found, strict=True)
        num_tokens = request.num_tokens
        to_come = sum(group.num_blocks_to_come(request.request_id, num_tokens, blocks) for group, blocks in groups)
        return to_come + _num_revived(found)

    def allocate_slots(
        self, request: Request, num_new_tokens: int, hit: PrefixHit | None = None
    ) -> list[list[int]] | None:
        """Make room for the request's next tokens.

        Args:
            request: the new tokens start behind its computed ones and those in flight (or behind the hit).
            num_new_tokens: tokens to compute.
            hit: what a request that starts has already, in the cache or in blocks of its own.

        Returns:
            Ids of the newly allocated blocks, one list a group, those of the hit not included; not to be changed.
            None, with nothing changed but blocks given back that no later token reads, if there aren't enough free
            blocks.
        """
        start = hit.num_computed_tokens if hit else request.num_computed_tokens + request.num_in_flight_tokens
        num_tokens = start + num_new_tokens
        if num_tokens <= request.num_slots:
            return self._no_new_blocks
        return self._grow(request, num_tokens, hit)

    def _grow(self, request: Request, num_tokens: int, hit: PrefixHit | None) -> list[list[int]] | None:
        # Only here, not in every step: until now the request took nothing more.
        for group in self._groups:
            group.drop_unread(request.request_id, request.num_computed_tokens)
        if self.num_blocks_wanted(request, num_tokens, hit) > self.pool.num_free_blocks:
            return None
        if hit and hit.num_tokens:
            # Before anything is allocated, or a group could be given a block that another one has just found.
            for group, blocks in zip(self._groups, hit.blocks, strict=True):
                group.take_hit(request.request_id, blocks)
        new_block_ids = [group.grow(request.request_id, num_tokens) for group in self._groups]
        request.num_slots = min([group.num_slots(request.request_id) for group in self._groups])
        return new_block_ids

    def block_ids(self, request: Request) -> list[list[int]]:
        """The request's block tables, one a group."""
        return [group.block_ids(request.request_id) for group in self._groups]

    def held_blocks(self, request: Request) -> list[KVCacheBlock]:
        """The blocks that the request holds."""
        return [block for group in self._groups for block in group.held_blocks(request.request_id)]

    def extend_hashes(self, request: Request) -> None:
        """Hash all full blocks of the request's tokens, where prefixes are shared."""
        if self._hasher is not None:
            self._hasher.extend(request)

    def cache_blocks(self, request: Request) -> None:
        """Make the request's full blocks findable, as far as its tokens are computed. Call only after the step."""
        hasher = self._hasher
        if hasher is None or request.num_computed_tokens < request.next_block_end:
            return
        size = hasher.block_size
        num_full = request.num_computed_tokens // size
        if num_full > len(request.block_hashes):
            hasher.extend(request)
        for group in self._groups:
            group.cache_full_blocks(request)
        request.next_block_end = (num_full + 1) * size

    def free(self, request: Request) -> None:
        """Give back all blocks of the request; what is cached of them stays findable until it is reused."""
        for group in self._groups:
            group.free(request.request_id)
        request.num_slots = request.next_block_end = 0

    def reset_prefix_cache(self) -> bool:
        """Forget what is cached. False (and nothing done) while a request holds blocks."""
        return self.pool.reset_cache()


def _num_revived(found: Sequence[Sequence[KVCacheBlock]]) -> int:
    """Blocks of a hit that leave the free list."""
    return sum(block.ref_count == 0 and not block.is_null for blocks in found for block in blocks)
