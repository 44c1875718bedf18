"""By priority, then by arrival."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from corefw.interfaces.scheduler import RequestView, SchedulerStrategy

__all__ = ["Priority"]


class Priority(SchedulerStrategy):
    """The smaller number goes first, of equal ones the earlier arrival. Preempts the one that would go last."""

    name: ClassVar[str] = "priority"

    def queue_key(self, request: RequestView) -> tuple[float, ...]:
        return request.priority, request.arrival_s

    def victim(self, running: Sequence[RequestView]) -> int:
        # The index decides between requests of one priority that arrived together: the later admission.
        return max(range(len(running)), key=lambda index: (*self.queue_key(running[index]), index))
