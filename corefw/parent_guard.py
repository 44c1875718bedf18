"""Ties a child's life to its parent's, from the child's first instruction on. Standard library only."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import shutil
import signal
import socket
import sys
import threading
from typing import NoReturn

__all__ = ["ParentGuard", "leave"]

_PR_SET_PDEATHSIG = 1
_PARENT_GONE = 70


class ParentGuard:
    """Ends this process when its parent is gone, whatever the process is doing at that moment.

    The kernel kills it (``PR_SET_PDEATHSIG``), and a thread sees the parent's end of the control socket close. The
    first works while native code holds the interpreter, the second where a short-lived thread of the parent spawned it.

    Attributes:
        directory: a folder to remove as well.
    """

    def __init__(self, parent_pid: int, control: socket.socket) -> None:
        self.directory: str | None = None
        self._parent_pid = parent_pid
        self._control = control

    @classmethod
    def add_flags(cls, parser: argparse.ArgumentParser) -> None:
        """What the parent tells each guarded child; see ``of``."""
        parser.add_argument("--control-fd", type=int, required=True)
        parser.add_argument("--parent-pid", type=int, required=True)
        parser.add_argument("--death-signal", action="store_true")

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> tuple[ParentGuard, socket.socket]:
        """Armed, as the flags say; and the control socket."""
        control = socket.socket(fileno=arguments.control_fd)
        control.set_inheritable(False)
        guard = cls(arguments.parent_pid, control)
        guard.arm(death_signal=arguments.death_signal)
        return guard, control

    def arm(self, *, death_signal: bool) -> None:
        """Start watching. ``death_signal`` only where the parent's spawning thread lives as long as the parent."""
        # The parent decides when a Ctrl-C or a SIGTERM to the group ends the engine. It spawned us with both blocked.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
        if death_signal:
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self._parent_pid:  # it died before the lines above
            self._exit()
        threading.Thread(target=self._watch, name="parent-guard", daemon=True).start()

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._control, 0)  # no data wanted: a hang-up is always reported
        with contextlib.suppress(OSError):  # a fork of the parent may hold the socket open after the parent's death
            poll.register(os.pidfd_open(self._parent_pid), select.POLLIN)
        poll.poll()
        self._exit()

    def _exit(self) -> None:
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
        os._exit(_PARENT_GONE)


def leave(status: int) -> NoReturn:
    """End this process, all of whose messages are sent. Taking torch's modules apart would cost a second of a stop."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
