"""What became of the plugins in the processes of a server: this one's own report, and what the core told last."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from corefw.errors import EngineError
from corefw.observability.logging import get_logger
from corefw.observability.metrics_catalog import PluginFigures
from corefw.plugin_system.groups import Process
from corefw.plugin_system.process_report import PluginSummary, ProcessReport, describe, summaries
from corefw.plugin_system.verdicts import State

if TYPE_CHECKING:
    from corefw.interfaces.server_state import ServedEngine
    from corefw.plugin_system.manager import PluginManager

__all__ = ["PluginStates"]

# A core answers between two steps, of which one takes less than this.
_ANSWER_LIMIT_S = 5.0
# Lines of the start-up log for plugins that serve.
_MAX_LINES = 20
# Series of the metric: more plugins than anybody has, and a bound all the same.
_MAX_SERIES = 500
_SERVING = (State.ACTIVE, State.LOADED)

logger = get_logger(__name__)


class PluginStates:
    """Used on the server's loop.

    Args:
        plugins: of this process; None where there is no manager.
        engine: whose core is asked.
        answer_limit_s: how long the core is waited for.

    Attributes:
        core_problem: why there is no newer report of the core, None while there is one.
    """

    def __init__(
        self, plugins: PluginManager | None, engine: ServedEngine, answer_limit_s: float = _ANSWER_LIMIT_S
    ) -> None:
        self._plugins = plugins
        self._engine = engine
        self._answer_limit_s = answer_limit_s
        self._core: ProcessReport | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self.core_problem: str | None = "it hasn't been asked yet"

    def reports(self) -> tuple[ProcessReport, ...]:
        """What is known, a report a process."""
        own = () if self._plugins is None else (describe(self._plugins, Process.FRONT_END),)
        return own if self._core is None else (*own, self._core)

    async def refresh(self) -> None:
        """Ask the core. It may take seconds while a long step runs; what a dead core told last stays known."""
        try:
            answer = await asyncio.wait_for(self._engine.call("plugins"), self._answer_limit_s)
            self._core = None if answer is None else msgspec.convert(answer, ProcessReport)
            self.core_problem = None
        except EngineError as error:
            self.core_problem = str(error)
        except TimeoutError:
            self.core_problem = f"it didn't answer within {self._answer_limit_s:g} s"

    def refresh_soon(self) -> None:
        """Ask the core without waiting, unless it is being asked."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self.refresh(), name="plugin-states")

    def figures(self) -> PluginFigures:
        """For the metrics: each plugin's state, and how many contributions are quarantined."""
        reports = self.reports()
        return PluginFigures(
            plugins=tuple(_labels(summary) for summary, _ in zip(summaries(reports), range(_MAX_SERIES), strict=False)),
            num_quarantined=sum(len(told.quarantined) for told in reports),
        )

    def log(self) -> None:
        """Tell the log what serves that isn't built in, and what failed; everything else for those who debug."""
        serving: list[PluginSummary] = []
        for summary in summaries(self.reports()):
            if not summary.builtin and summary.state in _SERVING:
                serving.append(summary)
            else:
                _log(logging.WARNING if summary.state == State.FAILED else logging.DEBUG, summary)
        for summary in serving[:_MAX_LINES]:
            _log(logging.INFO, summary)
        if len(serving) > _MAX_LINES:
            logger.info("and %d more plugins; GET /plugins lists them all", len(serving) - _MAX_LINES)


def _labels(summary: PluginSummary) -> dict[str, str]:
    return {
        "group": summary.group,
        "name": summary.name,
        "distribution": summary.distribution,
        "version": summary.version,
        "state": summary.state,
    }


def _log(level: int, summary: PluginSummary) -> None:
    where = ", ".join(name for name, fate in summary.processes.items() if fate.state == summary.state)
    logger.log(
        level,
        "plugin %s/%s %s (%s): %s in %s: %s",
        summary.distribution,
        summary.name,
        summary.version,
        summary.group,
        summary.state,
        where,
        summary.reason,
    )
