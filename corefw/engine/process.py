"""The engine core's process, as its parent sees it. Imports nothing heavy, so that it can start before all else."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from corefw import env
from corefw.engine.child import exit_text, spawn_guarded
from corefw.engine.step_board import BoardReader
from corefw.errors import EngineStartError

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.engine.clients.link import CoreLink
    from corefw.engine.clients.multiprocess import MultiProcessClient

__all__ = ["CoreProcess"]

_REAP_S = 5.0


class CoreProcess:
    """A child that becomes the engine core: ``spawn`` → ``configure`` → ``await connect()``.

    It never outlives this process. Whoever spawned it calls ``close`` when the start is given up before ``connect``.

    Attributes:
        control: this end of the control socket.
        exit_fd: readable once the child has exited.
        board: what the child does.
        spawned_s: when it was started, on the monotonic clock.
    """

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        control: socket.socket,
        board: BoardReader,
        spawn_again: Callable[[], CoreProcess],
    ) -> None:
        self._child = child
        self._spawn_again = spawn_again
        self._link: CoreLink | None = None
        self._log: tuple[str | None, str] = (None, "text")
        self.control = control
        self.board = board
        self.spawned_s = time.monotonic()
        self.exit_fd = os.pidfd_open(child.pid)

    @classmethod
    def spawn(cls, *, preload: Sequence[str] = ("torch",), environment: Mapping[str, str] | None = None) -> CoreProcess:
        """Start the child and return at once. It imports ``preload`` while it waits for its configuration.

        Called best on the main thread: the kernel then ties the child's life to this process's as well. A child that
        shares the machine with others gets its own ``environment``.

        Raises:
            EngineStartError: there is no process, file or memory to be had for it; nothing of it is left.
        """
        try:
            with contextlib.ExitStack() as undo:
                made = cls._spawned(undo, preload, environment)
                undo.pop_all()
        except OSError as error:
            raise EngineStartError(f"no process for the engine core can be started: {error.strerror}") from error
        return made

    @classmethod
    def _spawned(
        cls, undo: contextlib.ExitStack, preload: Sequence[str], environment: Mapping[str, str] | None
    ) -> CoreProcess:
        board = BoardReader()
        undo.callback(board.close)
        ours, theirs = socket.socketpair()
        undo.enter_context(ours)
        arguments = [f"--control-fd={theirs.fileno()}", f"--board-fd={board.fd}"]
        arguments += [f"--preload={module}" for module in preload]
        own = env.child_environment() if environment is None else environment
        with theirs:
            child = spawn_guarded("corefw.engine.core_main", arguments, (theirs.fileno(), board.fd), own)
        undo.callback(child.wait)
        undo.callback(child.kill)
        return cls(child, ours, board, partial(cls.spawn, preload=preload, environment=environment))

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether the child hasn't exited."""
        return self._child.poll() is None

    def configure(self, config: EngineConfig, *, log_level: str | None = None, log_format: str = "text") -> None:
        """Send the configuration; the child builds the engine from it. Doesn't wait for that.

        Raises:
            EngineStartError: the child has died, or no socket could be made.
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
        """Spawn another child like this one, and tell it what to build.

        Raises:
            EngineStartError: it has died at once, or no process or socket could be made.
        """
        process = self._spawn_again()
        level, form = self._log
        try:
            process.configure(config, log_level=level, log_format=form)
        except BaseException:
            process.close()
            raise
        return process

    def wait(self, timeout_s: float) -> bool:
        """Wait for the child's exit; False when it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout_s)
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

    def kill(self) -> None:
        """Kill the child if it runs, and reap it. May be called twice."""
        if self.alive:
            self._child.kill()
        self._child.wait(_REAP_S)

    def close(self) -> None:
        """Kill, and close what this process holds. May be called twice; a client's ``stop`` does it already."""
        self.kill()
        if self._link is not None:
            self._link.close()
        if self.exit_fd >= 0:
            os.close(self.exit_fd)
            self.exit_fd = -1
        self.control.close()
        self.board.close()

    def exit_error(self, stage: str = "") -> EngineStartError:
        """The error for a child that died without a word, while it was at ``stage``; waits for the exit status."""
        self.wait(_REAP_S)
        during = f", while it was {stage}" if stage else ""
        return EngineStartError(
            f"the engine core {self.exit_text()} before it was ready{during}; its last words are in the log"
        )

    def exit_text(self) -> str:
        """How the child ended: ``exited with status 1``, ``was killed by signal 9 (SIGKILL)``."""
        status = self._child.poll()
        return "is still running" if status is None else exit_text(status)
