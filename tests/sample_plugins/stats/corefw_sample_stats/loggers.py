"""Stat loggers: a JSON line an event to the file that COREFW_SAMPLE_STATS names; and one that fails."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corefw.interfaces.stat_logger import FinishedRequest, StatLogger

if TYPE_CHECKING:
    from corefw.messages.outputs import SchedulerStats


class FileLogger(StatLogger):
    """Writes what it is told."""

    name = "file"
    interval_s = 0.1

    def __init__(self) -> None:
        self._file = Path(os.environ["COREFW_SAMPLE_STATS"]).open("a", encoding="utf-8")  # noqa: SIM115

    def record_stats(self, stats: SchedulerStats) -> None:
        """A line with the engine's steps."""
        self._write(steps=stats.num_steps)

    def record_finished(self, request: FinishedRequest) -> None:
        """A line with the request's tags and tokens."""
        num_tokens = sum(sequence.num_generation_tokens for sequence in request.sequences)
        self._write(route=request.route, tags=dict(request.tags), tokens=num_tokens, error=request.error)

    def close(self) -> None:
        """The last line."""
        self._write(closed=True)
        self._file.close()

    def _write(self, **fields: Any) -> None:
        self._file.write(json.dumps(fields) + "\n")
        self._file.flush()


class FailingLogger(StatLogger):
    """Fails at every request."""

    name = "failing"

    def record_finished(self, request: FinishedRequest) -> None:
        """Fail."""
        raise OSError("the sample's disk is full")
