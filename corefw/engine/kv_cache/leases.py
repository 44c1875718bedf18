"""Blocks of ended requests that plugins keep for a while. A lease is one more reference to each block."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

from corefw.engine.kv_cache.block import KVCacheBlock
from corefw.engine.kv_cache.pool import BlockPool
from corefw.interfaces.hooks.kv import BlockLease, BlockLessor
from corefw.interfaces.kv_connector import KVRequest
from corefw.messages.outputs import FinishReason
from corefw.observability.logging import get_logger
from corefw.plugin_system.observers import ObserverCalls

__all__ = ["MAX_LEASED_SHARE", "MAX_LEASE_S", "Leases"]

MAX_LEASE_S = 600.0
MAX_LEASED_SHARE = 0.5

_log = get_logger(__name__)


class _Lease(BlockLease):
    """One lease; the plugin holds it too."""

    def __init__(
        self,
        request_id: str,
        blocks: Sequence[KVCacheBlock],
        deadline_s: float,
        lessor: ObserverCalls[BlockLessor],
        returned: SimpleQueue[_Lease],
    ) -> None:
        self.blocks = blocks
        self.deadline_s = deadline_s
        self.lessor = lessor
        self._request_id = request_id
        self._returned = returned

    @property
    def request_id(self) -> str:
        return self._request_id

    @property
    def block_ids(self) -> Sequence[int]:
        return [block.block_id for block in self.blocks]

    def give_back(self) -> None:
        self._returned.put(self)


class Leases:
    """All leases of an engine.

    Args:
        lessors: who may keep blocks.
        pool: whose blocks.
        clock: seconds; never goes back.
    """

    def __init__(
        self,
        lessors: Sequence[ObserverCalls[BlockLessor]],
        pool: BlockPool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lessors = tuple(lessors)
        self._pool = pool
        self._clock = clock
        self._live: set[_Lease] = set()
        self._returned: SimpleQueue[_Lease] = SimpleQueue()
        self._max_blocks = int(MAX_LEASED_SHARE * (len(pool.blocks) - 1))

    def __len__(self) -> int:
        return len(self._live)

    def offer(self, request: KVRequest, reason: FinishReason, blocks: Sequence[KVCacheBlock]) -> None:
        """Ask who wants the blocks of a request that ends, while it still holds them."""
        for lessor in self._lessors:
            seconds = lessor.run_as("lease_s", partial(self._ask, lessor, request, reason))
            if seconds is None:
                continue
            num_leased = sum(len(lease.blocks) for lease in self._live)
            if num_leased + len(blocks) > self._max_blocks:
                _log.warning(
                    "plugin %s gets no lease of the %d blocks of request %s: %d are leased, at most %d may be",
                    *(lessor.owner, len(blocks), request.request_id, num_leased, self._max_blocks),
                )
                continue
            self._grant(lessor, request.request_id, blocks, seconds)

    def return_due(self) -> None:
        """Free the blocks of leases that were given back or whose time is over."""
        while not self._returned.empty():
            self._end(self._returned.get_nowait())
        now = self._clock()
        for lease in [lease for lease in self._live if lease.deadline_s <= now]:
            self._end(lease)
            lease.lessor.run("expired", lease.request_id)

    @staticmethod
    def _ask(lessor: ObserverCalls[BlockLessor], request: KVRequest, reason: FinishReason) -> float | None:
        seconds = lessor.value.lease_s(request, reason)
        if seconds is None:
            return None
        if not isinstance(seconds, int | float) or not math.isfinite(seconds) or seconds <= 0:
            raise ValueError(f"a lease takes a positive number of seconds, got {seconds!r}")
        return min(float(seconds), MAX_LEASE_S)

    def _grant(
        self, lessor: ObserverCalls[BlockLessor], request_id: str, blocks: Sequence[KVCacheBlock], seconds: float
    ) -> None:
        lease = _Lease(request_id, tuple(blocks), self._clock() + seconds, lessor, self._returned)
        self._pool.touch(lease.blocks)
        self._live.add(lease)
        lessor.run("granted", lease)

    def _end(self, lease: _Lease) -> None:
        if lease in self._live:
            self._live.remove(lease)
            self._pool.free(lease.blocks[::-1])
