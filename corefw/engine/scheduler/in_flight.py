"""Steps that are on their way: whose results are still to come, and which blocks have to wait for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from corefw.engine.kv_cache.block import KVCacheBlock
from corefw.engine.kv_cache.pool import BlockPool
from corefw.engine.request import Request

__all__ = ["StepsInFlight"]

_NOBODY: dict[str, Request] = {}


class StepsInFlight:
    """Steps land in the order of their launch.

    A request that leaves takes its shares of these steps along: what comes back of them is stale. Its blocks stay held
    behind a fence, the step launched last: until that has landed, some step may still read or write them.

    Args:
        pool: whose blocks.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._steps: dict[int, dict[str, Request]] = {}
        self._last_step = 0
        self._fenced: deque[tuple[int, Sequence[KVCacheBlock]]] = deque()

    @property
    def last_step(self) -> int:
        """The step launched last."""
        return self._last_step

    @property
    def holds_blocks(self) -> bool:
        """Whether blocks come free when steps land."""
        return bool(self._fenced)

    def launch(self, step: int, requests: dict[str, Request]) -> None:
        """Note whom a step computes."""
        self._steps[step] = requests
        self._last_step = step

    def land(self, step: int) -> dict[str, Request]:
        """Let go of what waited for a step; returns whom it computed, without those that have left."""
        requests = self._steps.pop(step, _NOBODY)
        if self._fenced:
            oldest = next(iter(self._steps), self._last_step + 1)
            while self._fenced and self._fenced[0][0] < oldest:
                self._pool.free(self._fenced.popleft()[1][::-1])
        return requests

    def leave(self, request: Request, blocks: Sequence[KVCacheBlock]) -> None:
        """Take a request out of all steps, and hold the blocks that it is about to give back."""
        for requests in self._steps.values():
            requests.pop(request.request_id, None)
        if self._steps:
            self._pool.touch(blocks)
            self._fenced.append((self._last_step, tuple(blocks)))
