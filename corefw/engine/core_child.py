"""The engine core as a child of this process: what starts one where nothing else is asked for."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence

from corefw import env
from corefw.engine.child import exit_text, spawn_guarded
from corefw.interfaces.core_launcher import LaunchedCore

__all__ = ["CoreChild"]


class CoreChild(LaunchedCore):
    """Made by ``spawn``."""

    def __init__(self, child: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._child = child
        self.control = control
        self.exit_fd = os.pidfd_open(child.pid)

    @classmethod
    def spawn(
        cls, board_fd: int, *, preload: Sequence[str] = ("torch",), environment: Mapping[str, str] | None = None
    ) -> CoreChild:
        """Start the child and return at once. It imports ``preload`` while it waits for its configuration.

        Called best on the main thread: the kernel then ties the child's life to this process's as well. A child that
        shares the machine with others gets its own ``environment``.

        Raises:
            OSError: there is no process or file to be had for it; nothing of it is left.
        """
        with contextlib.ExitStack() as undo:
            ours, theirs = socket.socketpair()
            undo.enter_context(ours)
            arguments = [f"--control-fd={theirs.fileno()}", f"--board-fd={board_fd}"]
            arguments += [f"--preload={module}" for module in preload]
            own = env.child_environment() if environment is None else environment
            with theirs:
                child = spawn_guarded("corefw.engine.core_main", arguments, (theirs.fileno(), board_fd), own)
            undo.callback(child.wait)
            undo.callback(child.kill)
            made = cls(child, ours)
            undo.pop_all()
        return made

    @property
    def pid(self) -> int:
        return self._child.pid

    def exit_text(self) -> str | None:
        status = self._child.poll()
        return None if status is None else exit_text(status)

    def kill(self) -> None:
        if self._child.poll() is None:
            self._child.kill()

    def close(self) -> None:
        if self.exit_fd >= 0:
            os.close(self.exit_fd)
            self.exit_fd = -1
        self.control.close()
