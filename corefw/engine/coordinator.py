"""Keeps engines in step whose models compute together, as when experts are spread over them.

Each step of one is then a step of all: who has nothing to compute computes a dummy batch. A wave lasts from the first
request that finds all of them idle until none has work left; every so many steps, a round, they agree whether it goes
on. So all have taken equally many steps when it ends.
"""

from __future__ import annotations

from corefw.messages.control import WaveOrder, WaveReport

__all__ = ["Coordinator"]


class Coordinator:
    """Hears of each engine's rounds, and says what comes next. Used by one thread.

    Args:
        num_engines: they count from 0.

    Attributes:
        wave: number of the wave that runs, or of the next one.
        is_running: whether one does.
    """

    def __init__(self, num_engines: int) -> None:
        self._num_engines = num_engines
        self._round: dict[int, WaveReport] = {}
        self.wave = 0
        self.is_running = False

    def take(self, engine: int, report: WaveReport) -> list[tuple[int, WaveOrder]]:
        """Who is to be told what, in this order, after a report."""
        if report.num_steps == 0:
            return self._begin(engine, report.wave)
        self._round[engine] = report
        if len(self._round) < self._num_engines:
            return []
        goes_on = any(one.has_work for one in self._round.values())
        self._round.clear()
        order = WaveOrder(wave=self.wave, goes_on=goes_on)
        if not goes_on:
            self.is_running = False
            self.wave += 1
        return [(index, order) for index in range(self._num_engines)]

    def _begin(self, engine: int, wave: int) -> list[tuple[int, WaveOrder]]:
        """Two engines that begin a wave at once begin the same one."""
        if self.is_running or wave != self.wave:
            return []
        self.is_running = True
        return [(index, WaveOrder(wave=wave)) for index in range(self._num_engines) if index != engine]
