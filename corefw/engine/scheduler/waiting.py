"""Requests that wait for admission, in the strategy's order."""

from __future__ import annotations

import heapq
import itertools

from corefw.engine.request import Request
from corefw.engine.scheduler.strategies import Strategies
from corefw.interfaces.scheduler import QueueOrder

__all__ = ["WaitingQueue"]

_MIN_COMPACTION = 64

# Order, then a number that no other entry has: it identifies the entry, and requests are never compared.
_Entry = tuple[tuple[float, ...], int, int, Request]


class WaitingQueue:
    """A heap by (strategy's key, turn). No operation looks at all that wait; a removed entry stays until it surfaces.

    Turns count up as requests enter, so equal keys keep the order of entry; a request put back to the front gets a turn
    before all others. Once it has a turn, a request keeps it when it leaves and comes back (it was blocked).
    """

    def __init__(self, strategy: QueueOrder | Strategies) -> None:
        self._strategy = strategy
        self._heap: list[_Entry] = []
        self._live: dict[str, int] = {}
        self._entry_numbers = itertools.count()
        self._turns_behind = itertools.count(0)
        self._turns_before = itertools.count(-1, -1)

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, request: Request) -> bool:
        return request.request_id in self._live

    def add(self, request: Request) -> None:
        """Queue a request behind those with the same key."""
        if request.turn is None:
            request.turn = next(self._turns_behind)
        self._push(request, request.turn)

    def put_back(self, request: Request) -> None:
        """Queue a request before those with the same key."""
        request.turn = next(self._turns_before)
        self._push(request, request.turn)

    def peek(self) -> Request | None:
        """The request whose turn it is."""
        while self._heap:
            *_, number, request = self._heap[0]
            if self._live.get(request.request_id) == number:
                return request
            heapq.heappop(self._heap)
        return None

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands."""
        del self._live[request.request_id]
        if len(self._heap) > max(_MIN_COMPACTION, 2 * len(self._live)):
            self._compact()

    def reorder(self) -> None:
        """Ask for every key anew."""
        entries = [entry for entry in self._heap if self._live.get(entry[3].request_id) == entry[2]]
        self._heap = [(self._strategy.queue_key(entry[3]), *entry[1:]) for entry in entries]
        heapq.heapify(self._heap)

    def _push(self, request: Request, turn: int) -> None:
        number = next(self._entry_numbers)
        self._live[request.request_id] = number
        key = self._strategy.queue_key(request)  # first: it may end in a reorder
        heapq.heappush(self._heap, (key, turn, number, request))

    def _compact(self) -> None:
        # At most every other entry is dead afterwards, so this costs O(1) a removal.
        self._heap = [entry for entry in self._heap if self._live.get(entry[3].request_id) == entry[2]]
        heapq.heapify(self._heap)
