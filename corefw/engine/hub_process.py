"""The process of the hub, as a front end that it started sees it: what a link to a core needs to know of the core's."""

from __future__ import annotations

import os
import select
import socket
from typing import TYPE_CHECKING, cast

from corefw.errors import EngineStartError

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.engine.clients.hub_client import HubClient
    from corefw.engine.process import CoreProcess

__all__ = ["HubProcess"]


class HubProcess:
    """Can be left, not killed. ``await connect(…)`` makes a client that takes the hub for a core.

    Attributes:
        control: this end of the socket that the hub attaches.
        pid: the hub's process id.
        exit_fd: readable once the hub's process has exited or was left.
        host: None: it is on this machine.
    """

    host: None = None

    def __init__(self, control: socket.socket, pid: int) -> None:
        self.control = control
        self.pid = pid
        self._process_fd = os.pidfd_open(pid)
        self._left_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._either = select.epoll()
        for descriptor in (self._process_fd, self._left_fd):
            self._either.register(descriptor, select.EPOLLIN)
        self.exit_fd = self._either.fileno()

    async def connect(self, config: EngineConfig) -> HubClient:
        """Wait until the hub has attached this process.

        Raises:
            EngineStartError: it has gone.
        """
        from corefw.engine.clients.hub_client import HubClient
        from corefw.engine.clients.link import CoreLink

        self._link = CoreLink(cast("CoreProcess", self))  # has what the link and its client call
        self._link.config = config
        return await HubClient.connect(self._link)

    @property
    def alive(self) -> bool:
        """Whether the hub is there and wasn't left."""
        return not self._either.closed and not self._either.poll(0)

    def kill(self) -> None:
        """Leave: who waits for the hub is woken. May be called twice."""
        if not self._either.closed:
            os.eventfd_write(self._left_fd, 1)

    def close(self) -> None:
        """Close what this process holds. May be called twice."""
        self._link.close()
        if not self._either.closed:
            self._either.close()
            os.close(self._process_fd)
            os.close(self._left_fd)
        self.control.close()

    def exit_error(self, stage: str = "") -> EngineStartError:
        """The error for a hub that ended without a word."""
        del stage
        return EngineStartError(f"the engine {self.exit_text()}")

    def exit_text(self) -> str:
        """How it ended, as far as its child knows."""
        return "is no longer there"
