"""Running the app: uvicorn with corefw's signals, drain and end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Protocol, cast

import uvicorn
from starlette.applications import Starlette
from uvicorn.server import HANDLED_SIGNALS

from corefw.errors import EngineDeadError, EngineError
from corefw.frontend.text_engine import TextEngine
from corefw.observability.logging import get_logger
from corefw.server.app import create_app
from corefw.server.http_protocol import STOPPING, BoundedHttpProtocol, Deadlines
from corefw.server.listener import Listener
from corefw.server.protocol_servers import ProtocolServers
from corefw.server.ready_line import announce
from corefw.server.state import ServerState
from corefw.server.tls import tls_context

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig, ServerConfig
    from corefw.engine.async_engine import AsyncEngine
    from corefw.frontend.io_processing import IOProcessing
    from corefw.frontend.renderer import Renderer
    from corefw.observability.metrics import Metrics
    from corefw.observability.tracing import Tracing
    from corefw.plugin_system.manager import PluginManager

__all__ = ["HttpServer", "ServingParent", "run_server", "serve"]

logger = get_logger(__name__)

# After the drain's end every request gets its error at once; this is how long writing those may take.
_LAST_WORDS_S = 2.0
# A dead engine's server answers 503 for so long, for those who watch its health, and then ends.
_AFTERLIFE_S = 3.0
_KEEP_ALIVE_S = 75


class ServingParent(Protocol):
    """The process that started this one as one of several servers."""

    def serving(self, server: HttpServer) -> None:
        """The server takes clients; from now on it may be told to stop."""


async def run_server(
    engine: AsyncEngine,
    renderer: Renderer,
    plugins: PluginManager,
    config: EngineConfig,
    server_config: ServerConfig,
    listener: Listener,
    started_s: float,
    tracing: Tracing | None = None,
    processing: IOProcessing | None = None,
    parent: ServingParent | None = None,
) -> int:
    """Serve ``engine`` with all allowed endpoints until a signal; returns the exit status.

    Args:
        parent: who started this server to share a socket with others; it gives the orders then, not signals.

    Raises:
        EngineDeadError: see ``serve``.
        PluginError: an endpoint can't be loaded, or two want one route.
    """
    try:
        state = ServerState.build(
            engine=engine,
            text=TextEngine(engine, renderer, config.frontend.stream_interval, renderer.hooks),
            renderer=renderer,
            plugins=plugins,
            config=config,
            server_config=server_config,
            started_s=started_s,
            tracing=tracing,
            processing=processing,
        )
        app = create_app(state, [plugin.create() for plugin in plugins.load_all("endpoint_plugins")])
    except BaseException:
        await engine.shutdown()
        raise
    await serve(app, listener, server_config, engine.shutdown, parent)
    return 0


async def serve(
    app: Starlette,
    listener: Listener,
    server_config: ServerConfig,
    on_shutdown: Callable[[], Awaitable[None]],
    parent: ServingParent | None = None,
) -> None:
    """Serve until a signal, or until the engine is dead.

    The first SIGTERM or SIGINT stops accepting and lets running requests finish for ``shutdown_timeout`` seconds, then
    ends them with an error; a second one ends them at once. ``on_shutdown`` is awaited last, in any case.

    Args:
        app: from ``create_app``.
        listener: from ``listen_on``; its file is gone when the drain begins, so that a next server finds the path free.
        server_config: for the timeout.
        on_shutdown: shuts the engine down.
        parent: see ``run_server``.

    Raises:
        EngineDeadError: the engine died and won't come back.
    """
    try:
        state: ServerState = app.state.corefw
        server = HttpServer(app, server_config, listener, parent=parent)
        await server.serve([listener.socket])
        death = state.engine.death  # a shut-down engine counts as dead, too
    finally:
        await on_shutdown()
    if death is not None:
        raise death


class HttpServer(uvicorn.Server):
    """uvicorn with corefw's signals and drain; ``should_exit = True`` drains, ``force_exit`` as well ends at once."""

    def __init__(
        self,
        app: Starlette,
        server_config: ServerConfig,
        listener: Listener,
        deadlines: Deadlines | None = None,
        parent: ServingParent | None = None,
    ) -> None:
        protocol = partial(BoundedHttpProtocol, deadlines=deadlines, logs_access=server_config.access_log)
        super().__init__(
            uvicorn.Config(
                app,
                http=cast("type[BoundedHttpProtocol]", protocol),  # is only called
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(server_config.shutdown_timeout + _LAST_WORDS_S) + 1,
            )
        )
        self.config.load()
        self.config.ssl = tls_context(server_config)
        self._app = app
        self._state: ServerState = app.state.corefw
        self._protocol_servers: ProtocolServers = app.state.protocol_servers
        self._drain_s = server_config.shutdown_timeout
        self._listener = listener
        self._parent = parent
        self._dead_since_s: float | None = None

    @property
    def metrics(self) -> Metrics:
        """This server's own."""
        return self._state.metrics

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and say where: scripts that start a server on port 0 read the line.

        Raises:
            PluginError: an endpoint or a protocol server can't start.
        """
        try:
            await super().startup(sockets)
        except SystemExit:  # uvicorn's answer to an app that can't start
            raise self._app.state.start_error or EngineError("the server can't start; the log says why") from None
        url = self._listener.url
        took_s = time.time() - self._state.started_s
        logger.info("serving %s on %s after %.2f s", ", ".join(self._state.model_names), url, took_s)
        if self._parent is None:
            announce(url)
        else:
            self._parent.serving(self)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; True ends the server."""
        if self._state.engine.death is not None:
            now_s = time.monotonic()
            self._dead_since_s = now_s if self._dead_since_s is None else self._dead_since_s
            if now_s - self._dead_since_s > _AFTERLIFE_S:
                logger.error("the server ends, because its engine has died: %s", self._state.engine.death)
                return True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain."""
        self._listener.remove_file()
        self._protocol_servers.begin_stop()
        loop = asyncio.get_running_loop()
        num_running = len(self._state.in_flight)
        drain_s = 0.0 if self.force_exit else self._drain_s
        logger.info("shutting down; %d running requests get %g s to finish", num_running, drain_s)
        timers = [
            loop.call_later(drain_s, self._end_requests),
            loop.call_later(drain_s + _LAST_WORDS_S, self._drop_connections),
        ]
        try:
            await super().shutdown(sockets)
        finally:
            for timer in timers:
                timer.cancel()
        if self.force_exit:  # uvicorn leaves the lifespan hanging then, and its cancellation in the log
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.lifespan.shutdown(), _LAST_WORDS_S)

    def _end_requests(self) -> None:
        self._state.in_flight.stop(EngineDeadError(STOPPING))

    def _drop_connections(self) -> None:
        """Clients that don't read their last words don't get them."""
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle signals on the loop, and don't raise them again at the end: a drained server ends with status 0."""
        if self._parent is not None:
            yield
            return
        loop = asyncio.get_running_loop()
        try:
            for number in HANDLED_SIGNALS:
                loop.add_signal_handler(number, self.handle_exit, number, None)
        except (RuntimeError, ValueError):  # not the main thread, as in tests: who runs the server stops it
            yield
            return
        try:
            yield
        finally:
            for number in HANDLED_SIGNALS:
                loop.remove_signal_handler(number)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second ends."""
        del frame
        if self.should_exit:
            logger.warning("second %s: ending at once", signal.Signals(sig).name)
            self.force_exit = True
            self._end_requests()
        self.should_exit = True
