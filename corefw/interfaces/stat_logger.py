"""StatLogger: figures of the engine and of each request, for where the Prometheus endpoint isn't enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from corefw.messages.outputs import SchedulerStats
    from corefw.observability.metrics_record import FinishedSequence

__all__ = ["FinishedRequest", "StatLogger"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """What is known of a request that ended.

    Attributes:
        request_id: of the answer.
        model: name under which the client asked.
        route: path of the route, or what a plugin called its own way in.
        tags: that the client sent (``metadata`` in the API: at most 16, keys of 64 and values of 512 characters).
        sequences: one for each prompt and each of its n outputs, in the order of their ends.
        error: why it failed; None where it didn't.
    """

    request_id: str
    model: str
    route: str
    tags: Mapping[str, str]
    sequences: Sequence[FinishedSequence]
    error: str | None = None


class StatLogger:
    """Receives figures (group ``corefw.stat_logger_plugins``, or hook ``corefw_stat_logger``).

    Every logger has a thread of its own that calls it, one call after the other, beside the event loop: no request
    waits for it. What it raises is logged; a call that takes longer than a second counts as a failure, too; after three
    in a row it isn't called any more. 4,096 requests wait for a logger at most; those on top are left out, which is
    logged.

    Attributes:
        name: the plugin's name.
        interval_s: seconds between two calls of ``record_stats``.
    """

    name: ClassVar[str] = ""
    api_version: ClassVar[int] = 1
    interval_s: ClassVar[float] = 1.0

    def record_stats(self, stats: SchedulerStats) -> None:
        """The engine's gauges and counters after its newest step. Not called while no step was made."""

    def record_finished(self, request: FinishedRequest) -> None:
        """A request has ended: answered, failed or given up by its client. Refused ones never began."""

    def close(self) -> None:
        """Called once, after everything else, when the server ends; it has two seconds."""
