"""CoreLauncher: where the processes of engine cores run, and how one that has gone is told."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.plugin_system.manager import PluginManager

__all__ = ["CoreLauncher", "LaunchedCore"]


class LaunchedCore(ABC):
    """A process that runs ``corefw.engine.core_main``, as whoever launched it holds it.

    It never outlives this process, however that ends. Methods are called by any thread and never block, ``close``
    excepted.

    Attributes:
        control: this end of the stream to the core's control socket.
        exit_fd: readable once the core has exited, and what it said before is to be read from ``control``.
        host: this machine's address as the core reaches it; None: the core is on this machine.
    """

    control: socket.socket
    exit_fd: int
    host: str | None = None

    @property
    @abstractmethod
    def pid(self) -> int:
        """Process id on the core's own machine; 0 as long as that isn't known."""

    @abstractmethod
    def exit_text(self) -> str | None:
        """How it ended, after "the engine core": ``was killed by signal 9 (SIGKILL)``; None while it runs."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once, without waiting for that. May be called when it has ended, and twice."""

    @abstractmethod
    def close(self) -> None:
        """Give back what this process holds; the core has ended. May be called twice."""


class CoreLauncher(ABC):
    """Starts the engine cores of one server, again when they died. Lives in the front end, which imports no torch."""

    name: ClassVar[str]
    api_version: ClassVar[int] = 1

    @abstractmethod
    def __init__(self, config: EngineConfig, plugins: PluginManager) -> None:
        """Make sure of what ``config.parallel.num_own_engines`` cores take, each with its ranks.

        Raises ConfigError or EngineStartError where there is too little.
        """

    @abstractmethod
    def launch(self, index: int, board_fd: int) -> LaunchedCore:
        """Start a core and return at once; one that can't be started counts as one that has ended.

        Args:
            index: of the engine among this server's, from 0; the same one when it is started again.
            board_fd: memory in which what the core writes on its step board has to arrive: a child inherits it, a
                ``corefw.sdk.core_launchers.BoardMirror`` writes what comes from elsewhere.

        Raises:
            OSError: there is no process to be had.
        """

    def close(self) -> None:
        """Give back what was reserved; the cores have ended. May be called twice."""
