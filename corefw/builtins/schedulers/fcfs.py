"""First come, first served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from corefw.interfaces.scheduler import RequestView, SchedulerStrategy

__all__ = ["FirstComeFirstServed"]


class FirstComeFirstServed(SchedulerStrategy):
    """Admits in order of entry (all keys are equal, and the queue is stable) and preempts the latest admission."""

    name: ClassVar[str] = "fcfs"

    def queue_key(self, request: RequestView) -> tuple[float, ...]:
        del request
        return ()

    def victim(self, running: Sequence[RequestView]) -> int:
        return len(running) - 1
