"""Plugins that watch the scheduler."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from corefw.interfaces.hooks.scheduling import ObservedStep, SchedulerObserver, corefw_scheduler_observer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corefw.config.engine_config import EngineConfig
    from corefw.messages.outputs import SchedulerStats
    from corefw.messages.scheduling import SchedulerOutput
    from corefw.plugin_system.contributions import Guarded
    from corefw.plugin_system.manager import PluginManager

__all__ = ["observers_of", "show_step"]

Observers = tuple["Guarded[SchedulerObserver]", ...]


def observers_of(config: EngineConfig, plugins: PluginManager) -> Observers:
    """Those of the general plugins that were loaded."""
    return tuple(map(plugins.guard, plugins.collect(SchedulerObserver, corefw_scheduler_observer, config)))


def show_step(
    observers: Sequence[Guarded[SchedulerObserver]], scheduled: SchedulerOutput, stats: SchedulerStats
) -> None:
    """Tell them of a step that was put together."""
    seen = ObservedStep(
        step=scheduled.step,
        num_scheduled_tokens=MappingProxyType(scheduled.num_scheduled_tokens),
        new_request_ids=tuple(request.request_id for request in scheduled.new_requests),
        preempted_request_ids=tuple(scheduled.preempted_request_ids),
        finished_request_ids=scheduled.finished_request_ids,
        num_running=stats.num_running,
        num_waiting=stats.num_waiting,
        kv_usage=stats.kv_usage,
    )
    for observer in observers:
        observer.run(observer.value.scheduled, seen)
