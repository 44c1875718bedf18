"""What several equal engines say, as if one had said it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from corefw.config.runtime_plan import RuntimePlan
from corefw.engine.running_totals import summed_counters
from corefw.messages.outputs import SchedulerStats, UtilityResult

__all__ = ["merged_plan", "merged_result", "merged_stats"]


def merged_plan(plans: Sequence[RuntimePlan]) -> RuntimePlan:
    """What holds for every engine: the shortest context, the fewest blocks."""
    return dataclasses.replace(
        plans[0],
        num_blocks=min(plan.num_blocks for plan in plans),
        max_model_len=min(plan.max_model_len for plan in plans),
        kv_cache_bytes=min(plan.kv_cache_bytes for plan in plans),
    )


def merged_stats(stats: Sequence[SchedulerStats]) -> SchedulerStats:
    """Sums; of the share of KV blocks in use the mean, since the engines have equally many."""
    return SchedulerStats(
        **summed_counters(stats),
        num_running=sum(one.num_running for one in stats),
        num_waiting=sum(one.num_waiting for one in stats),
        kv_usage=sum(one.kv_usage for one in stats) / len(stats),
        engines=tuple(stats),
    )


def merged_result(method: str, results: Sequence[UtilityResult]) -> UtilityResult:
    """One answer to a call that every engine got: the first failure, else all values in one.

    The core's own calls answer as a single engine would. What plugins offer, and ``kv_events``, answers a list with
    one value an engine.
    """
    failed = next((result for result in results if result.error is not None), None)
    if failed is not None:
        return failed
    values = [result.value for result in results]
    return msgspec.structs.replace(results[0], value=_MERGES.get(method, list)(values))


def _plans(values: list[Any]) -> Any:
    return msgspec.to_builtins(merged_plan([msgspec.convert(value, RuntimePlan) for value in values]))


def _stats(values: list[Any]) -> Any:
    return msgspec.to_builtins(merged_stats([msgspec.convert(value, SchedulerStats) for value in values]))


def _plugins(values: list[Any]) -> Any:
    """The set is the same in all; what is quarantined may differ."""
    if values[0] is None:
        return None
    quarantined: list[Any] = []
    for value in values:
        quarantined += [one for one in value["quarantined"] if one not in quarantined]
    return {**values[0], "quarantined": quarantined}


def _first(values: list[Any]) -> Any:
    return values[0]


_MERGES: dict[str, Callable[[list[Any]], Any]] = {
    "plan": _plans,
    "plugins": _plugins,
    "reset_prefix_cache": all,
    "set_log_level": _first,
    "stats": _stats,
}
