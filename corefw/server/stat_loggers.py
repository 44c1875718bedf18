"""Stat loggers of plugins: each with a thread and a bounded queue of its own, so that no request waits for one."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from corefw.errors import PluginError, PluginUnavailable
from corefw.interfaces.hooks.stats import corefw_stat_logger
from corefw.interfaces.stat_logger import FinishedRequest, StatLogger
from corefw.plugin_system.contributions import Contribution, Guarded
from corefw.server.plugin_layers import is_named

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.messages.outputs import SchedulerStats
    from corefw.plugin_system.manager import PluginManager

__all__ = ["StatLoggers"]

_GROUP = "stat_logger_plugins"
_MAX_WAITING = 4096
_MAX_CALL_S = 1.0
_MAX_INTERVAL_S = 86_400.0
_LAST_CALLS_S = 2.0

T = TypeVar("T")

logger = logging.getLogger(__name__)


class StatLoggers:
    """All of a server. Used on the event loop, but for what the loggers' own threads do.

    Args:
        loggers: to be called.
        stats: the engine's newest figures; called in other threads.
        max_call_s: what takes longer counts as a failure.

    Raises:
        PluginError: one has an interval that is none.
    """

    def __init__(
        self,
        loggers: Sequence[Guarded[StatLogger]],
        stats: Callable[[], SchedulerStats],
        max_call_s: float = _MAX_CALL_S,
    ) -> None:
        for each in loggers:
            _check_interval(each)
        self._feeds = tuple(_Feed(each, stats, max_call_s) for each in loggers)

    @classmethod
    def collect(
        cls, plugins: PluginManager | None, config: EngineConfig, stats: Callable[[], SchedulerStats]
    ) -> StatLoggers:
        """Those of the group, then those of hooks.

        Raises:
            PluginError: one that was named can't be made, or one has an interval that is none.
        """
        if plugins is None:
            return cls((), stats)
        found = (*_of_group(plugins), *plugins.collect(StatLogger, corefw_stat_logger, config))
        return cls([plugins.guard(each) for each in found], stats)

    def __bool__(self) -> bool:
        return bool(self._feeds)

    def start(self) -> None:
        """Begin to call them."""
        for feed in self._feeds:
            feed.start()

    def finished(self, request: FinishedRequest) -> None:
        """A request has ended."""
        for feed in self._feeds:
            feed.put(request)

    async def stop(self) -> None:
        """Let them take what still waits, and close."""
        for feed in self._feeds:
            feed.finish()
        await asyncio.gather(*(asyncio.to_thread(feed.join, _LAST_CALLS_S) for feed in self._feeds))


class _Feed:
    """One logger's thread and what waits for it."""

    def __init__(self, guarded: Guarded[StatLogger], stats: Callable[[], SchedulerStats], max_call_s: float) -> None:
        self._guarded = guarded
        self._stats = stats
        self._max_call_s = max_call_s
        self._waiting: queue.Queue[FinishedRequest | None] = queue.Queue(_MAX_WAITING)
        self._num_left_out = 0
        self._num_steps = 0
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name=f"stats of {guarded.owner}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, request: FinishedRequest) -> None:
        if self._guarded.quarantined is not None:
            return
        try:
            self._waiting.put_nowait(request)
        except queue.Full:
            if not self._num_left_out:
                logger.warning("stat logger %s doesn't keep up; requests are left out", self._guarded.owner)
            self._num_left_out += 1

    def finish(self) -> None:
        self._is_ending = True
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return  # the thread finds its end behind the last request

    def join(self, limit_s: float) -> None:
        if self._thread.ident is None:
            return
        self._thread.join(limit_s)
        if self._thread.is_alive():
            logger.warning("stat logger %s didn't close in %g s", self._guarded.owner, limit_s)
        if self._num_left_out:
            logger.warning("stat logger %s was told of %d requests too few", self._guarded.owner, self._num_left_out)

    def _run(self) -> None:
        interval_s = max(0.01, self._guarded.value.interval_s)
        due_s = time.monotonic() + interval_s
        while True:
            try:
                request = self._waiting.get(timeout=max(0.0, due_s - time.monotonic()))
            except queue.Empty:
                request = None
            if request is not None:
                self._guarded.run(self._take_finished, request)
            if time.monotonic() >= due_s:
                self._tell_stats()
                due_s = time.monotonic() + interval_s
            if self._is_ending and self._waiting.empty():
                break
        self._tell_stats()
        self._guarded.run(self._guarded.value.close)

    def _tell_stats(self) -> None:
        stats = self._stats()
        if stats.num_steps != self._num_steps:
            self._num_steps = stats.num_steps
            self._guarded.run(self._take_stats, stats)

    def _take_finished(self, request: FinishedRequest) -> None:
        self._timed(self._guarded.value.record_finished, request)

    def _take_stats(self, stats: SchedulerStats) -> None:
        self._timed(self._guarded.value.record_stats, stats)

    def _timed(self, call: Callable[[T], None], argument: T) -> None:
        begin_s = time.monotonic()
        call(argument)
        took_s = time.monotonic() - begin_s
        if took_s > self._max_call_s:
            raise TimeoutError(f"a call took {took_s:.1f} s; a stat logger has {self._max_call_s:g} s")


def _check_interval(logger_of: Guarded[StatLogger]) -> None:
    interval_s: object = logger_of.value.interval_s
    if not isinstance(interval_s, int | float) or not 0 < interval_s <= _MAX_INTERVAL_S:
        raise PluginError(
            f"stat logger {logger_of.owner} has the interval_s {interval_s!r:.80}; it takes seconds, up to a day"
        )


def _of_group(plugins: PluginManager) -> list[Contribution[StatLogger]]:
    made: list[Contribution[StatLogger]] = []
    for plugin in plugins.load_all(_GROUP):
        owner = f"{plugin.distribution}/{plugin.name}"
        try:
            made.append(Contribution(plugin.name, plugin.distribution, _GROUP, plugin.create()))
        except PluginUnavailable as error:
            logger.info("stat logger %s is unavailable: %s", owner, error)
        except PluginError as error:
            if is_named(plugins, _GROUP, owner):
                raise
            logger.error("stat logger %s isn't used: %s", owner, error, exc_info=error)
    return made
