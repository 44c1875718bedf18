"""How long each stage of a start took."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Self

__all__ = ["StageTimes"]


class StageTimes:
    """Made when the start begins; whoever enters a stage ends the one before.

    Args:
        first: the stage that begins with it.
        begin_s: when that was, on the clock of ``time.perf_counter``; default: now.
    """

    def __init__(self, first: str, begin_s: float | None = None) -> None:
        self._begin_s = self._entered_s = time.perf_counter() if begin_s is None else begin_s
        self._stage = first
        self._took_s: dict[str, float] = {}

    @classmethod
    def of_process(cls, first: str) -> Self:
        """Begun when this process was started, where the kernel tells that (Linux); else now."""
        try:
            ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
            age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, AttributeError):
            age_s = 0.0
        return cls(first, time.perf_counter() - age_s)

    def enter(self, stage: str) -> None:
        """Another stage begins; one may be entered again."""
        now_s = time.perf_counter()
        self._took_s[self._stage] = self._took_s.get(self._stage, 0.0) + now_s - self._entered_s
        self._stage, self._entered_s = stage, now_s

    def __str__(self) -> str:
        """``3.11 s (importing 2.80 s, loading the model 0.31 s)``, up to now."""
        self.enter(self._stage)
        parts = ", ".join(f"{stage} {took_s:.2f} s" for stage, took_s in self._took_s.items())
        return f"{self._entered_s - self._begin_s:.2f} s ({parts})"
