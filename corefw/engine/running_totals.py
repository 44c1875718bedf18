"""Counters that go on when the core that counts is another one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import msgspec

from corefw.messages.outputs import SchedulerStats

__all__ = ["RunningTotals", "summed_counters"]

_NO_NUMBERS = frozenset({"step_token_counts", "engines"})
_GAUGES = frozenset({"num_running", "num_waiting", "kv_usage"})
_COUNTERS = tuple(name for name in SchedulerStats.__struct_fields__ if name not in _GAUGES | _NO_NUMBERS)


class RunningTotals:
    """What all cores so far have counted, the dead ones included."""

    def __init__(self) -> None:
        self._before: SchedulerStats | None = None
        self._last = SchedulerStats()

    def take(self, stats: SchedulerStats) -> SchedulerStats:
        """The present core's figures; returns them with those of the cores before it."""
        before = self._before
        self._last = stats if before is None else msgspec.structs.replace(stats, **summed_counters([stats, before]))
        return self._last

    def core_lost(self, num_waiting: int) -> SchedulerStats:
        """The figures while there is no core."""
        self._before = msgspec.structs.replace(self._last, num_restarts=self._last.num_restarts + 1)
        self._last = msgspec.structs.replace(self._before, num_running=0, num_waiting=num_waiting, kv_usage=0.0)
        return self._last


def summed_counters(stats: Sequence[SchedulerStats]) -> dict[str, Any]:
    """The sum of each counter, by its name; of counts for several sizes that of each size."""
    sums: dict[str, Any] = {name: sum(getattr(one, name) for one in stats) for name in _COUNTERS}
    counts = (one.step_token_counts for one in stats)
    return {**sums, "step_token_counts": tuple(map(sum, zip_longest(*counts, fillvalue=0)))}
