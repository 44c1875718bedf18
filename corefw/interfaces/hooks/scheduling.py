"""Hooks of the scheduler. Its decisions are plugins of ``corefw.scheduler_strategies``; these only watch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corefw.interfaces.hooks.marker import hookspec

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig

__all__ = ["ObservedStep", "SchedulerObserver", "corefw_scheduler_observer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedStep:
    """A step that was put together. Whoever keeps it copies what it needs: the collections are the engine's.

    Attributes:
        step: number, from 1.
        num_scheduled_tokens: by request id.
        new_request_ids: requests that begin or come back in this step.
        preempted_request_ids: requests that had to give way in it.
        finished_request_ids: requests that workers forget: they ended since the step before, or start over because
            their KV couldn't be loaded. After a step that failed, those of it come again.
        num_running: requests that hold a slot.
        num_waiting: requests that wait, those that are blocked on something included.
        kv_usage: share of the KV blocks in use.
    """

    step: int
    num_scheduled_tokens: Mapping[str, int]
    new_request_ids: Sequence[str]
    preempted_request_ids: Sequence[str]
    finished_request_ids: Sequence[str]
    num_running: int
    num_waiting: int
    kv_usage: float


class SchedulerObserver(ABC):
    """Sees every step of the core's scheduler."""

    @abstractmethod
    def scheduled(self, step: ObservedStep) -> None:
        """A step was put together, perhaps without tokens. In the engine core's only thread: must not block."""


@hookspec
def corefw_scheduler_observer(config: EngineConfig) -> SchedulerObserver | None:
    """Watch the scheduler.

    Called in the engine core, when the core's own scheduler is built; other schedulers have no observers.

    Args:
        config: the engine's.

    Returns:
        an observer, called once a step; None for none.
    """
