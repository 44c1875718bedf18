"""Which of several equal engines gets a request: the one that has its beginning in the cache, unless others wait."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from corefw.messages.outputs import SchedulerStats

if TYPE_CHECKING:
    from corefw.messages.request import EngineCoreRequest

__all__ = ["Balancer"]

# By so many requests an engine may be ahead of the idlest one and still get those whose beginning it knows. Two: where
# all requests begin alike, as chats with one system prompt do, every engine soon knows that beginning.
_AFFINITY_SLACK = 2
# Beginnings that are remembered, those used last; a few hundred bytes each.
_MAX_BEGINNINGS = 16384


class Balancer:
    """Chooses, and keeps count. Used by one thread.

    Args:
        num_engines: they count from 0.
        block_size: tokens of a KV block; a beginning is one, two, four, … blocks.
    """

    def __init__(self, num_engines: int, block_size: int) -> None:
        self._engines = [_Load() for _ in range(num_engines)]
        self._block_size = block_size
        self._knowing: OrderedDict[int, set[int]] = OrderedDict()

    def place(self, request: EngineCoreRequest, away: Collection[int] = ()) -> int:
        """The engine that the request goes to; it counts as sent.

        Args:
            request: whatever it is.
            away: engines that can't be relied on at the moment; they get it only if all are such.
        """
        beginnings = list(self._beginnings(request))
        here = [i for i in range(len(self._engines)) if i not in away] or range(len(self._engines))
        least = min(here, key=self._cost)
        limit = self._engines[least].num_requests + _AFFINITY_SLACK
        knowing = [i for i in self._those_who_know(beginnings) if i in here and self._engines[i].num_requests < limit]
        chosen = min(knowing, key=self._cost, default=least)
        self._engines[chosen].sent()
        self._remember(beginnings, chosen)
        return chosen

    def ended(self, engine: int) -> None:
        """A request that was placed there has ended."""
        self._engines[engine].ended()

    def report(self, engine: int, stats: SchedulerStats) -> None:
        """What an engine says of itself; requests of other front ends are in it."""
        self._engines[engine].report(stats)

    def _cost(self, engine: int) -> tuple[float, int]:
        """What a request waits for there, about; of equals the first."""
        load = self._engines[engine]
        return (load.num_requests + 1) * (1 + load.kv_usage), engine

    def _beginnings(self, request: EngineCoreRequest) -> Iterator[int]:
        """Shortest first. What else a block's hash depends on only makes a miss, so it can be left out."""
        num_tokens = self._block_size
        while num_tokens <= len(request.prompt_ids):
            yield hash((request.cache_salt, num_tokens, *request.prompt_ids[:num_tokens]))
            num_tokens *= 2

    def _those_who_know(self, beginnings: list[int]) -> set[int]:
        """The engines with the longest of these beginnings that anybody has."""
        return next((self._knowing[key] for key in reversed(beginnings) if key in self._knowing), set())

    def _remember(self, beginnings: list[int], engine: int) -> None:
        for key in beginnings:
            self._knowing.setdefault(key, set()).add(engine)
            self._knowing.move_to_end(key)
        while len(self._knowing) > _MAX_BEGINNINGS:
            self._knowing.popitem(last=False)


class _Load:
    """What is known of one engine."""

    def __init__(self) -> None:
        self.num_own = 0
        self.kv_usage = 0.0
        self._num_reported = 0
        self._num_sent_since = 0

    @property
    def num_requests(self) -> int:
        """Own ones are known at once; the report lags, and counts everybody's."""
        return max(self.num_own, self._num_reported + self._num_sent_since)

    def sent(self) -> None:
        self.num_own += 1
        self._num_sent_since += 1

    def ended(self) -> None:
        self.num_own -= 1
        if self._num_sent_since:
            self._num_sent_since -= 1
        else:
            self._num_reported = max(0, self._num_reported - 1)

    def report(self, stats: SchedulerStats) -> None:
        self.kv_usage = stats.kv_usage
        self._num_reported = stats.num_running + stats.num_waiting
        self._num_sent_since = 0
