"""The engine core's process, as its parent sees it. Imports nothing heavy, so that it can start before all else."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from corefw.engine.core_child import CoreChild
from corefw.engine.step_board import BoardReader
from corefw.errors import EngineStartError

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.engine.clients.link import CoreLink
    from corefw.engine.clients.multiprocess import MultiProcessClient
    from corefw.interfaces.core_launcher import LaunchedCore

__all__ = ["CoreProcess"]

_REAP_S = 5.0


class CoreProcess:
    """A process that becomes the engine core, wherever it runs: ``configure`` → ``await connect()``.

    It never outlives this process. Whoever made it calls ``close`` when the start is given up before ``connect``.

    Args:
        launch: starts it, with the memory of its step board; again for each successor.

    Attributes:
        control: this end of the control socket.
        host: this machine's address as the core reaches it; None: the core is on this machine.
        board: what the core does.
        spawned_s: when it was started, on the monotonic clock.

    Raises:
        EngineStartError: there is no process, file or memory to be had for it; nothing of it is left.
    """

    def __init__(self, launch: Callable[[int], LaunchedCore]) -> None:
        self._launch = launch
        self._link: CoreLink | None = None
        self._log: tuple[str | None, str] = (None, "text")
        try:
            self.board = BoardReader()
            try:
                self._core = launch(self.board.fd)
            except BaseException:
                self.board.close()
                raise
        except OSError as error:
            raise EngineStartError(f"no process for the engine core can be started: {error.strerror}") from error
        self.control = self._core.control
        self.host = self._core.host
        self.spawned_s = time.monotonic()

    @classmethod
    def spawn(cls, *, preload: Sequence[str] = ("torch",), environment: Mapping[str, str] | None = None) -> CoreProcess:
        """Start a child of this process and return at once: see ``CoreChild.spawn``."""
        return cls(partial(CoreChild.spawn, preload=preload, environment=environment))

    @property
    def exit_fd(self) -> int:
        """Readable once the core has exited; -1 once it is closed."""
        return self._core.exit_fd

    @property
    def pid(self) -> int:
        """The core's process id, on its own machine."""
        return self._core.pid

    @property
    def alive(self) -> bool:
        """Whether the core hasn't exited."""
        return self._core.exit_text() is None

    def configure(self, config: EngineConfig, *, log_level: str | None = None, log_format: str = "text") -> None:
        """Send the configuration; the core builds the engine from it. Doesn't wait for that.

        Raises:
            EngineStartError: the core has died, or no socket could be made.
        """
        from corefw.engine.clients.link import CoreLink  # heavy: zmq, msgspec

        self._log = (log_level, log_format)
        self._link = CoreLink(self)
        self._link.configure(config, log_level, log_format)

    async def connect(self, on_progress: Callable[[str], None] | None = None) -> MultiProcessClient:
        """Wait until the engine is ready.

        Args:
            on_progress: called on the event loop with each stage of the start.

        Raises:
            EngineStartError: it could not start; the message is the cause's, ``kind`` tells a ConfigError.
        """
        from corefw.engine.clients.multiprocess import MultiProcessClient

        assert self._link is not None, "configure comes before connect"
        return await MultiProcessClient.connect(self._link, on_progress)

    def successor(self, config: EngineConfig) -> CoreProcess:
        """Start another core where this one ran, and tell it what to build.

        Raises:
            EngineStartError: it has died at once, or no process or socket could be made.
        """
        process = CoreProcess(self._launch)
        level, form = self._log
        try:
            process.configure(config, log_level=level, log_format=form)
        except BaseException:
            process.close()
            raise
        return process

    def wait(self, timeout_s: float) -> bool:
        """Wait for the core's exit; False when it still runs."""
        if self.alive:
            poll = select.poll()
            poll.register(self.exit_fd, select.POLLIN)
            poll.poll(timeout_s * 1000)
        return not self.alive

    async def exited(self, timeout_s: float) -> bool:
        """The same without blocking the event loop."""
        import asyncio  # not needed to spawn a child, which can't come too soon

        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(self.exit_fd, gone.set)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(gone.wait(), timeout_s)
        finally:
            loop.remove_reader(self.exit_fd)
        return not self.alive

    def kill_soon(self) -> None:
        """Kill the core, without waiting for its end."""
        self._core.kill()

    def kill(self) -> None:
        """Kill the core if it runs, and wait for its end. May be called twice."""
        self._core.kill()
        self.wait(_REAP_S)

    def close(self) -> None:
        """Kill, and close what this process holds. May be called twice; a client's ``stop`` does it already."""
        self.kill()
        if self._link is not None:
            self._link.close()
        self._core.close()
        self.board.close()

    def exit_error(self, stage: str = "") -> EngineStartError:
        """The error for a core that died without a word, while it was at ``stage``; waits for the exit status."""
        self.wait(_REAP_S)
        during = f", while it was {stage}" if stage else ""
        return EngineStartError(
            f"the engine core {self.exit_text()} before it was ready{during}; its last words are in the log"
        )

    def exit_text(self) -> str:
        """How the core ended: ``exited with status 1``, ``was killed by signal 9 (SIGKILL)``."""
        return self._core.exit_text() or "is still running"
