"""Several processes that answer HTTP requests over one engine, as the process that started them sees them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from corefw.engine.child import exit_text, spawn_guarded
from corefw.engine.clients.base import post
from corefw.engine.startup import StartFailed
from corefw.engine.step_board import BoardReader
from corefw.errors import EngineError, EngineStartError
from corefw.observability.logging import get_logger
from corefw.server.api_channel import ApiChannel, Counted, ServeOrder, Serving, StopOrder
from corefw.server.ready_line import announce
from corefw.server.server_pulse import ServerLimits, ServerPulse
from corefw.server.shared_counts import SharedCounts

if TYPE_CHECKING:
    from corefw.config.engine_config import ServerConfig
    from corefw.engine.hub import EngineHub, FrontEndLink
    from corefw.server.listener import Listener

__all__ = ["ApiServers", "part_of"]

# Beyond the drain: writing last words, closing the engine's client.
_STOP_GRACE_S = 8.0
# A dead engine's servers answer 503 for a while before they end.
_AFTERLIFE_S = 10.0
# More deaths than this in so long, and something is wrong that another start doesn't mend.
_MAX_DEATHS = 5
_DEATHS_WITHIN_S = 60.0
# One that ends because the engine has died may be seen before the engine's death is.
_DEATH_IS_SHARED_S = 0.2
_LOOK_S = 0.1
_LIMITS = ServerLimits()

_log = get_logger(__name__)


def part_of(server_config: ServerConfig, index: int) -> ServerConfig:
    """What one of the processes may do: its part of the limits that hold for all; the first one logs the figures."""
    num_servers = server_config.api_server_count
    return dataclasses.replace(
        server_config,
        max_concurrent_requests=-(-server_config.max_concurrent_requests // num_servers),
        max_total_body_bytes=max(server_config.total_body_bytes // num_servers, server_config.max_body_bytes),
        disable_log_stats=server_config.disable_log_stats or index > 0,
    )


class ApiServers:
    """Starts them, starts one that dies again, and stops them. Used by one event loop, on the main thread.

    Args:
        hub: what they share.
        order: what to tell each of them.
        listener: what they all listen on; closed when they stop.
        num_servers: how many.
        drain_s: how long running requests get.
        limits: when one that exists counts as dead.
    """

    def __init__(
        self,
        hub: EngineHub,
        order: Callable[[int], ServeOrder],
        listener: Listener,
        num_servers: int,
        drain_s: float,
        limits: ServerLimits = _LIMITS,
    ) -> None:
        self._hub = hub
        self._order = order
        self._listener = listener
        self._drain_s = drain_s
        self._numbers = itertools.count()
        self._counts = SharedCounts()
        self._limits = limits
        self._servers = [self._make(index) for index in range(num_servers)]
        self._deaths: deque[float] = deque()
        self._num_signals = 0
        self._signalled = asyncio.Event()

    async def run(self) -> None:
        """Serve until a signal.

        Raises:
            EngineStartError: a server can't start, or they keep dying.
            EngineDeadError: the engine has gone for good.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._take_signal)
        try:
            await self._serve()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            await asyncio.gather(*(server.close() for server in self._servers))

    async def _serve(self) -> None:
        signalled = asyncio.create_task(self._signalled.wait())
        keeping = asyncio.create_task(self._start_and_keep())
        watching = asyncio.create_task(self._watch())
        try:
            ends: list[asyncio.Future[Any]] = [signalled, keeping, self._hub.death]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                keeping.result()  # never ends but by raising
        finally:
            for task in (signalled, keeping, watching):
                task.cancel()
            await asyncio.gather(signalled, keeping, watching, return_exceptions=True)
        if self._hub.death.done():
            await self._until_ended(_AFTERLIFE_S)
            raise self._hub.death.result()
        await self._stop()

    async def _start_and_keep(self) -> None:
        await _together(server.start() for server in self._servers)
        url = self._listener.url
        _log.info("%d API servers serve on %s", len(self._servers), url)
        announce(url)
        await _together(self._keep(index) for index in range(len(self._servers)))

    async def _watch(self) -> None:
        """Kill who doesn't get on any more, and tell all of who is about to count as such."""
        last_s = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            now_s = time.monotonic()
            troubles = [server.look(now_s - last_s) for server in self._servers]
            self._hub.front_end_trouble = next(filter(None, troubles), None)
            last_s = now_s

    async def _keep(self, index: int) -> None:
        while True:
            server = self._servers[index]
            await server.ended.wait()
            await asyncio.sleep(_DEATH_IS_SHARED_S)  # then _serve ends this
            await server.close()
            self._forget(server)
            self._count_death(f"API server {index} {server.how}")
            server = self._servers[index] = self._make(index)
            try:
                await server.start()
            except EngineStartError as error:  # it ends, and counts
                _log.error("API server %d couldn't be started again: %s", index, error)
            else:
                for counted in self._counts.all():  # what was counted while it started
                    server.tell(counted)

    def _make(self, index: int) -> _ApiServer:
        order = msgspec.structs.replace(self._order(index), counted=self._counts.all())
        return _ApiServer(next(self._numbers), self._hub, order, self._listener, self._take_counts, self._limits)

    def _take_counts(self, sender: _ApiServer, told: Counted) -> None:
        """Pass on what one has counted."""
        self._tell_others(sender, self._counts.take(sender.number, told.share))

    def _forget(self, server: _ApiServer) -> None:
        """It has died; what it has counted stays counted."""
        if (counted := self._counts.server_gone(server.number)) is not None:
            self._tell_others(server, counted)

    def _tell_others(self, sender: _ApiServer, counted: Counted) -> None:
        for server in self._servers:
            if server is not sender:
                server.tell(counted)

    def _count_death(self, what: str) -> None:
        now_s = time.monotonic()
        self._deaths.append(now_s)
        while self._deaths[0] < now_s - _DEATHS_WITHIN_S:
            self._deaths.popleft()
        if len(self._deaths) > _MAX_DEATHS:
            raise EngineStartError(f"{what}, the {len(self._deaths)}th death of such in {_DEATHS_WITHIN_S:g} s")
        _log.error("%s; its requests are lost, and it is started again", what)

    async def _stop(self) -> None:
        _log.info("shutting down %d API servers", len(self._servers))
        self._listener.close()  # else the kernel still takes clients in, whom nobody serves
        for server in self._servers:
            server.stop()
        await self._until_ended(self._drain_s + _STOP_GRACE_S)

    async def _until_ended(self, limit_s: float) -> None:
        ended = asyncio.gather(*(server.ended.wait() for server in self._servers))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended, limit_s)

    def _take_signal(self) -> None:
        self._num_signals += 1
        self._signalled.set()
        if self._num_signals > 1:
            for server in self._servers:
                server.stop()


class _ApiServer:
    """One child: ``await start()``, then ``stop()`` and wait for ``ended``; ``close`` in any case.

    Attributes:
        number: its own alone, also among those that died.
        ended: set once it has exited.
        how: words for it.
    """

    def __init__(
        self,
        number: int,
        hub: EngineHub,
        order: ServeOrder,
        listener: Listener,
        on_counts: Callable[[_ApiServer, Counted], None],
        limits: ServerLimits,
    ) -> None:
        self.number = number
        self._limits = limits
        self._pulse: ServerPulse | None = None
        self._hub = hub
        self._on_counts = on_counts
        self._order = order
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._serving: asyncio.Future[None] = self._loop.create_future()
        self._child: subprocess.Popen[bytes] | None = None
        self._link: FrontEndLink | None = None
        self._held = contextlib.ExitStack()
        self.ended = asyncio.Event()
        self.how = ""

    async def start(self) -> None:
        """Wait until it takes clients.

        Raises:
            EngineStartError: with the cause as it told it, or its exit status.
        """
        try:
            self._child = self._spawn()
        except OSError as error:  # too many open files, or processes
            self._held.close()
            self.how = "couldn't be started"
            self.ended.set()
            raise EngineStartError(f"API server {self._order.index} couldn't be started: {error}") from None
        self._channel = ApiChannel(self._control)
        threading.Thread(target=self._listen, args=(self._child,), name="api-server", daemon=True).start()
        with contextlib.suppress(EngineError, OSError):  # of a child that died: how, is known below
            await asyncio.to_thread(self._channel.send, self._order)
            self._link = await self._hub.attach(self._engine)
        await self._serving

    def stop(self) -> None:
        """Tell it to drain; the second time, to end at once. One that doesn't serve yet is ended in any case."""
        if self._child is None:
            self.ended.set()
        elif self._is_serving:
            self.tell(StopOrder())
        elif self._child.poll() is None:
            self._child.kill()

    def look(self, since_s: float) -> str | None:
        """See if it gets on, ``since_s`` seconds after the last look; returns its trouble. One that hangs is killed."""
        if self._pulse is None or self.ended.is_set():
            return None
        self._pulse.is_serving = self._is_serving
        self._pulse.look(since_s)
        if self._pulse.verdict is not None and self._child is not None and self._child.poll() is None:
            _log.error("API server %d %s and is killed", self._order.index, self._pulse.verdict)
            self._child.kill()
        return None if self._pulse.trouble is None else f"API server {self._order.index} {self._pulse.trouble}"

    def tell(self, message: StopOrder | Counted) -> None:
        """Send what it gets to hear while it serves. Never blocks: one that doesn't read misses it."""
        if self._is_serving:
            self._channel.offer(message)

    async def close(self) -> None:
        """Kill it if it runs, and close what is held for it. May be called twice."""
        if self._child is None:
            return
        if self._child.poll() is None:
            self._child.kill()
        await self.ended.wait()
        if self._link is not None:
            await self._hub.detach(self._link)
        self._held.close()
        if self._serving.done() and not self._serving.cancelled():
            self._serving.exception()  # whoever had to know knows

    def _spawn(self) -> subprocess.Popen[bytes]:
        board = self._held.enter_context(contextlib.closing(BoardReader()))
        self._pulse = ServerPulse(board, self._limits)
        with contextlib.ExitStack() as theirs:
            (self._control, control), (self._engine, engine) = (self._socket_pair(theirs) for _ in range(2))
            shared = {"control": control, "engine": engine, "listen": self._listener.socket}
            descriptors = {name: one.fileno() for name, one in shared.items()}
            return self._spawn_with({**descriptors, "board": board.fd})

    def _socket_pair(self, theirs: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
        ends = socket.socketpair()
        return self._held.enter_context(ends[0]), theirs.enter_context(ends[1])

    def _spawn_with(self, descriptors: dict[str, int]) -> subprocess.Popen[bytes]:
        arguments = (f"--{name}-fd={descriptor}" for name, descriptor in descriptors.items())
        return spawn_guarded("corefw.server.api_server_main", arguments, descriptors.values())

    def _listen(self, child: subprocess.Popen[bytes]) -> None:
        """A thread: what it says, and then its exit."""
        try:
            while (message := self._channel.receive()) is not None:
                post(self._loop, self._take, message)
        except (OSError, ValueError, EngineError) as error:
            _log.debug("an API server can't be heard any more: %s", error)
        post(self._loop, self._end, exit_text(child.wait()))

    def _take(self, message: object) -> None:
        if isinstance(message, Counted):
            self._on_counts(self, message)
        elif self._serving.done():
            return
        elif isinstance(message, Serving):
            self._serving.set_result(None)
        elif isinstance(message, StartFailed):
            self._serving.set_exception(message.to_exception())

    @property
    def _is_serving(self) -> bool:
        begun = self._serving.done() and not self._serving.cancelled() and self._serving.exception() is None
        return begun and not self.ended.is_set()

    def _end(self, how: str) -> None:
        self.how = how
        self.ended.set()
        if not self._serving.done():
            self._serving.set_exception(EngineStartError(f"API server {self._order.index} {self.how} while it started"))


async def _together(jobs: Iterable[Coroutine[None, None, None]]) -> None:
    """Until all are done, or one has failed: then none goes on."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
