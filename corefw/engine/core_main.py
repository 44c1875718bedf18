"""``python -m corefw.engine.core_main``: the engine core's process.

Imports the standard library alone until the process is tied to its parent's life; everything heavy comes after.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import importlib
import os
import select
import shutil
import signal
import socket
import sys
import threading

__all__ = ["ParentGuard", "main"]

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


def main() -> int:
    """Run the core until it is told to stop; returns the exit status."""
    faulthandler.enable(2)  # a plugin's native code that crashes leaves the place where it did
    arguments = _arguments()
    control = socket.socket(fileno=arguments.control_fd)
    control.set_inheritable(False)
    guard = ParentGuard(arguments.parent_pid, control)
    guard.arm(death_signal=arguments.death_signal)
    preload = threading.Thread(target=_preload, args=(arguments.preload,), name="preload", daemon=True)
    preload.start()

    from corefw.engine.core_process import run_core  # only now: the guard is armed and the slow imports are under way

    return run_core(control, guard, preload.join, arguments.board_fd)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m corefw.engine.core_main", allow_abbrev=False)
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--board-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--death-signal", action="store_true")
    parser.add_argument("--preload", action="append", default=[])
    return parser.parse_args()


def _preload(modules: list[str]) -> None:
    for module in modules:
        # A module that is needed is imported again by whoever needs it, and raises there.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


if __name__ == "__main__":
    status = main()
    # Everything is sent and closed. Taking torch's modules apart would only cost a second of a stop.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
