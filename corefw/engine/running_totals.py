"""Counters that go on when the core that counts is another one."""

from __future__ import annotations

from itertools import zip_longest

import msgspec

from corefw.messages.outputs import SchedulerStats

__all__ = ["RunningTotals"]

_GAUGES = frozenset({"num_running", "num_waiting", "kv_usage"})
_COUNTERS = tuple(name for name in SchedulerStats.__struct_fields__ if name not in _GAUGES)


class RunningTotals:
    """What all cores so far have counted, the dead ones included."""

    def __init__(self) -> None:
        self._before: SchedulerStats | None = None
        self._last = SchedulerStats()

    def take(self, stats: SchedulerStats) -> SchedulerStats:
        """The present core's figures; returns them with those of the cores before it."""
        self._last = stats if self._before is None else _sum(stats, self._before)
        return self._last

    def core_lost(self, num_waiting: int) -> SchedulerStats:
        """The figures while there is no core."""
        self._before = msgspec.structs.replace(self._last, num_restarts=self._last.num_restarts + 1)
        self._last = msgspec.structs.replace(self._before, num_running=0, num_waiting=num_waiting, kv_usage=0.0)
        return self._last


def _sum(stats: SchedulerStats, before: SchedulerStats) -> SchedulerStats:
    sums: dict[str, object] = {}
    for name in _COUNTERS:
        mine, theirs = getattr(stats, name), getattr(before, name)
        if isinstance(mine, tuple):
            sums[name] = tuple(a + b for a, b in zip_longest(mine, theirs, fillvalue=0))
        else:
            sums[name] = mine + theirs
    return msgspec.structs.replace(stats, **sums)
