"""Plugins' events as an async iterator, for endpoints and protocol servers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from corefw.errors import EngineDeadError
from corefw.messages.events import PluginEvent

__all__ = ["MAX_UNREAD_EVENTS", "EventSubscription"]

MAX_UNREAD_EVENTS = 1024


class EventSubscription:
    """Yields events of some topics in order, from now on; EngineDeadError ends it. A context manager.

    Whoever reads too slowly loses the oldest ones.

    Args:
        topics: ``plugin.topic``, or ``plugin`` for all of a plugin's; none for all.
        on_close: told when nobody reads any more.

    Attributes:
        num_dropped: events lost here, or before they came here, since the start of the subscription.
    """

    def __init__(self, topics: tuple[str, ...], on_close: Callable[[EventSubscription], object]) -> None:
        self._topics = topics
        self._on_close = on_close
        self._unread: deque[PluginEvent] = deque()
        self._filled = asyncio.Event()
        self._death: EngineDeadError | None = None
        self._is_closed = False
        self.num_dropped = 0

    def put(self, event: PluginEvent) -> None:
        """From the engine: an event of whatever topic."""
        if self._topics and event.topic not in self._topics and event.topic.partition(".")[0] not in self._topics:
            return
        if len(self._unread) == MAX_UNREAD_EVENTS:
            self._unread.popleft()
            self.num_dropped += 1
        self._unread.append(event)
        self._filled.set()

    def fail(self, death: EngineDeadError) -> None:
        """From the engine: nothing will come any more."""
        self._death = death
        self._filled.set()

    def close(self) -> None:
        """Stop reading: the iterator ends. May be called twice."""
        if not self._is_closed:
            self._is_closed = True
            self._filled.set()
            self._on_close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PluginEvent:
        while not self._unread:
            if self._is_closed:
                raise StopAsyncIteration
            if self._death is not None:
                raise self._death
            self._filled.clear()
            await self._filled.wait()
        return self._unread.popleft()
