"""What goes between the processes that answer HTTP requests and the one that started them."""

from __future__ import annotations

import select
import socket

import msgspec

from corefw.config.engine_config import EngineConfig, ServerConfig
from corefw.engine.startup import Channel, StartFailed
from corefw.observability.metrics_share import MetricsShare

__all__ = ["ApiChannel", "Counted", "ServeOrder", "Serving", "StopOrder"]


class ServeOrder(msgspec.Struct, frozen=True, kw_only=True, tag="serve"):
    """To the child: what to serve.

    Attributes:
        config: the resolved configuration, the resolved plugin set in it.
        server_config: this process's part of what the operator allowed.
        index: which of the processes it is, from 0.
        url: where clients reach the socket.
        log_level: of its records.
        search_path: the parent's ``sys.path``.
        started_s: ``time.time()`` of the parent's start.
        counted: what the others have counted so far, the dead ones included.
    """

    config: EngineConfig
    server_config: ServerConfig
    index: int
    url: str
    log_level: str
    search_path: tuple[str, ...]
    started_s: float
    counted: tuple[Counted, ...] = ()


class StopOrder(msgspec.Struct, frozen=True, tag="stop"):
    """To the child: drain; the second one: end at once."""


class Serving(msgspec.Struct, frozen=True, tag="serving"):
    """From the child: it takes clients."""


class Counted(msgspec.Struct, frozen=True, kw_only=True, tag="counted"):
    """From a child: what it has counted; to the others: what that one has, or all that died have together.

    Attributes:
        server: number of the child, another one for each that is started.
        share: what it has counted.
        living: of a sum of the dead: numbers of those that aren't in it. None: it is one server's.
    """

    server: int = -1
    share: MetricsShare
    living: tuple[int, ...] | None = None


ApiMessage = ServeOrder | StopOrder | Serving | StartFailed | Counted


class ApiChannel(Channel[ApiMessage]):
    """Carries these."""

    def __init__(self, stream: socket.socket) -> None:
        super().__init__(stream, ApiMessage)
        self._socket = stream

    def offer(self, message: ApiMessage) -> bool:
        """Send without blocking; False where the other end has gone, or doesn't read and so misses it."""
        try:
            # A stream counts as writable while three quarters of its buffer are free, so the message goes in whole.
            if not select.select([], [self._socket], [], 0)[1]:
                return False
            self.send(message)
        except (OSError, ValueError):  # ValueError: it was closed here
            return False
        return True
