"""The bounded way of plugins' events from the engine core and the workers to the front end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from corefw.interfaces.hooks.rpc import EventSource, corefw_event_source
from corefw.messages.events import PluginEvent
from corefw.messages.plain import plain_copy, plain_problem, valid_text

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.plugin_system.manager import PluginManager

__all__ = ["MAX_WAITING_EVENTS", "EventQueue"]

MAX_WAITING_EVENTS = 4096


class EventQueue:
    """Events of one process's role that haven't left yet. What comes while it is full is dropped and counted."""

    def __init__(self, process: str, limit: int = MAX_WAITING_EVENTS) -> None:
        self._process = str(process)  # a role of the process table, which is a text too
        self._limit = limit
        self._waiting: list[PluginEvent] = []
        self._num_dropped = 0
        self._lock = threading.Lock()

    @classmethod
    def collect(cls, config: EngineConfig, plugins: PluginManager, process: str) -> EventQueue | None:
        """A queue that the plugins' sources have been given; None where there are none."""
        sources = plugins.collect(EventSource, corefw_event_source, config, process)
        if not sources:
            return None
        queue = cls(process)
        for source in sources:
            guarded = plugins.guard(source)
            guarded.run(guarded.value.attach, _Sink(queue, source.plugin))
        return queue

    def put(self, topic: str, data: object) -> bool:
        """Any thread: queue an event; False where there is no room."""
        if problem := plain_problem(data):
            raise TypeError(f"the event {topic[:80]} {problem}")
        event = PluginEvent(topic=valid_text(topic), data=plain_copy(data), time_s=time.time(), process=self._process)
        return self.extend([event], 0)

    def extend(self, events: Iterable[PluginEvent], num_dropped: int) -> bool:
        """Any thread: queue what another queue had; False where there is no room for all."""
        with self._lock:
            self._num_dropped += num_dropped
            listed = list(events)
            room = self._limit - len(self._waiting)
            self._waiting += listed[:room]
            self._num_dropped += max(0, len(listed) - room)
            return len(listed) <= room

    def take(self) -> tuple[list[PluginEvent], int]:
        """What waits, and how many were dropped since the last call."""
        if not self._waiting and not self._num_dropped:
            return [], 0
        with self._lock:
            taken, self._waiting = self._waiting, []
            num_dropped, self._num_dropped = self._num_dropped, 0
        return taken, num_dropped


class _Sink:
    """One plugin's end of a queue."""

    def __init__(self, queue: EventQueue, plugin: str) -> None:
        self._queue = queue
        self._plugin = plugin

    def emit(self, topic: str, data: object) -> bool:
        return self._queue.put(f"{self._plugin}.{topic}", data)
