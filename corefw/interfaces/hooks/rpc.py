"""Hooks between the front end and the processes behind it: calls by name in, events out. Plain data only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from corefw.interfaces.hooks.marker import hookspec

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig

__all__ = ["EventSink", "EventSource", "RpcHandlers", "corefw_event_source", "corefw_rpc_handlers"]

RpcHandlers = Mapping[str, Callable[..., Any]]
"""By method name. Arguments and results are plain data: None, booleans, numbers, texts, bytes, lists, dicts."""


class EventSink(Protocol):
    """Takes a plugin's events on their way to the front end."""

    def emit(self, topic: str, data: object) -> bool:
        """Send an event; it leaves with the engine's next outputs. Any thread; never blocks.

        Args:
            topic: without the plugin's name, which is put in front of it.
            data: plain data.

        Returns:
            False when the sink was full and the event was dropped, which is counted.

        Raises:
            TypeError: the data aren't plain.
        """


class EventSource(ABC):
    """Has events to tell."""

    @abstractmethod
    def attach(self, sink: EventSink) -> None:
        """Called once, with where to send them."""


@hookspec
def corefw_rpc_handlers(config: EngineConfig, process: str) -> RpcHandlers | None:
    """Name functions that the front end may call.

    Called once in the engine core and once in each worker. ``status`` of plugin ``cache`` is called as
    ``cache.status``; one that is found in the engine core answers for the engine, else every worker is asked and the
    answer is a list of theirs, by rank. A handler runs on the engine's thread, between two steps: it has to be quick.

    Args:
        config: as resolved.
        process: ``engine_core`` or ``worker``; a worker that the core runs itself has its own turn.

    Returns:
        the functions by name, or None. What one raises comes back to its caller as the text of a RequestError.
    """


@hookspec
def corefw_event_source(config: EngineConfig, process: str) -> EventSource | None:
    """Send events to the front end, where endpoints and offline programs read them.

    Called once in the engine core and once in each worker.

    Args:
        config: as resolved.
        process: ``engine_core`` or ``worker``.

    Returns:
        what is given the sink, or None.
    """
