"""The inside of one of several processes that answer HTTP requests: the server, over the parent's hub."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import uvloop

from corefw.engine.async_engine import AsyncEngine
from corefw.engine.clients.base import post
from corefw.engine.hub_process import HubProcess
from corefw.engine.startup import StartFailed
from corefw.engine.step_board import BEAT_S, Doing, StepBoard
from corefw.errors import EngineDeadError
from corefw.frontend.prepare import prepare_again
from corefw.messages.control_channel import follow_search_path
from corefw.observability.logging import configure_logging, get_logger
from corefw.server.api_channel import ApiChannel, Counted, ServeOrder, Serving, StopOrder
from corefw.server.listener import Listener
from corefw.server.observation import make_tracing
from corefw.server.run import HttpServer, run_server

if TYPE_CHECKING:
    from corefw.frontend.prepare import Prepared
    from corefw.observability.metrics import Metrics
    from corefw.observability.metrics_share import MetricsShare

__all__ = ["run_api_server"]

# How old the other servers' part of what this one tells may be.
_COUNTS_S = 0.5

_log = get_logger(__name__)


def run_api_server(
    control: socket.socket, engine: socket.socket, listening: socket.socket, board: StepBoard, parent_pid: int
) -> int:
    """Serve what the parent says until it says stop; returns the exit status.

    Args:
        control: to the parent.
        engine: to its hub.
        listening: shared with the other processes.
        board: where the parent sees that the event loop gets on.
        parent_pid: process id.
    """
    channel = ApiChannel(control)
    order = channel.receive()
    if not isinstance(order, ServeOrder):
        return 1
    follow_search_path(order.search_path)
    configure_logging(order.log_level, f"api {order.index}", order.server_config.log_format)
    parent = _Parent(channel, board, order.counted)
    try:
        prepared = prepare_again(order.config)
        uvloop.run(_serve(order, prepared, HubProcess(engine, parent_pid), listening, parent))
    except EngineDeadError as error:
        return parent.failed(error)
    except Exception as error:  # whatever it is, the parent has to say it
        _log.debug("this server can't go on", exc_info=True)
        return parent.failed(error)
    return 0


async def _serve(
    order: ServeOrder, prepared: Prepared, hub: HubProcess, listening: socket.socket, parent: _Parent
) -> None:
    engine = AsyncEngine(await hub.connect(order.config))
    await run_server(
        engine,
        prepared.renderer,
        prepared.plugins,
        order.config,
        order.server_config,
        Listener(listening, order.url),
        order.started_s,
        tracing=make_tracing(order.server_config),
        processing=prepared.processing,
        parent=parent,
    )


class _Parent:
    """Hears of the server's progress, and gives it orders."""

    def __init__(self, channel: ApiChannel, board: StepBoard, counted: Sequence[Counted]) -> None:
        self._channel = channel
        self._board = board
        self._counted = counted
        self._is_serving = False
        self._told: MetricsShare | None = None
        self._metrics: Metrics
        self._tasks: tuple[asyncio.Task[None], ...]

    def serving(self, server: HttpServer) -> None:
        """The server takes clients; from now on it may be told to stop."""
        self._is_serving = True
        self._channel.send(Serving())
        loop = asyncio.get_running_loop()
        self._metrics = server.metrics
        for told in self._counted:
            self._hear(told)
        self._metrics.on_total = self._tell
        self._tasks = (
            asyncio.create_task(self._tell_counts(), name="counts"),
            asyncio.create_task(self._show_turns(), name="turns"),
        )
        threading.Thread(target=self._obey, args=(server, loop), name="orders", daemon=True).start()

    def failed(self, error: Exception) -> int:
        """The server has ended with an error; returns the exit status."""
        if not self._is_serving:
            with contextlib.suppress(OSError):
                self._channel.send(StartFailed.from_exception(error))
        elif not isinstance(error, EngineDeadError):  # which the parent knows by itself
            _log.error("this server ends: %s", error)
        return 1

    def _obey(self, server: HttpServer, loop: asyncio.AbstractEventLoop) -> None:
        while (message := self._channel.receive()) is not None:
            if isinstance(message, StopOrder):
                post(loop, lambda _: server.handle_exit(signal.SIGTERM, None), None)
            elif isinstance(message, Counted):
                post(loop, self._hear, message)

    def _hear(self, told: Counted) -> None:
        if told.living is None:
            self._metrics.take_share(told.server, told.share)
        else:
            self._metrics.take_sum(told.share, told.living)

    async def _show_turns(self) -> None:
        """A thread tells that the process runs; that this loop gets on, only the loop itself can tell."""
        while True:
            self._board.turns_to(Doing.WORK)
            await asyncio.sleep(BEAT_S)

    async def _tell_counts(self) -> None:
        while True:
            await asyncio.sleep(_COUNTS_S)
            self._tell(self._metrics.share())

    def _tell(self, share: MetricsShare) -> None:
        """Also whenever a client gets to know it: so what another one tells next isn't less."""
        if share != self._told and self._channel.offer(Counted(share=share)):
            self._told = share
