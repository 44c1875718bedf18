"""Starting a child whose life hangs on this process's, and telling how one ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping

from corefw.engine.signal_mask import blocked_signals

__all__ = ["exit_text", "spawn_guarded"]


def spawn_guarded(
    module: str, arguments: Iterable[str], descriptors: Iterable[int], environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start ``python -m MODULE`` and return at once; the module arms a ``ParentGuard`` before all else.

    What it prints belongs to the log: the standard output is the command's own.

    Args:
        module: with the flags ``--parent-pid`` and ``--death-signal``.
        arguments: its other flags.
        descriptors: that the child inherits, under their numbers.
        environment: of the child; default: this process's.

    Raises:
        OSError: there is no process to be had.
    """
    command = [sys.executable, "-P", "-m", module, f"--parent-pid={os.getpid()}", *arguments]
    if threading.current_thread() is threading.main_thread():
        # The kernel's death signal follows the spawning thread; a shorter-lived one would take the child along.
        command.append("--death-signal")
    with blocked_signals():
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=2,
            pass_fds=tuple(descriptors),
            env=None if environment is None else dict(environment),
        )


def exit_text(status: int) -> str:
    """``exited with status 1``, ``was killed by signal 9 (SIGKILL)``."""
    if status >= 0:
        return f"exited with status {status}"
    with contextlib.suppress(ValueError):
        return f"was killed by signal {-status} ({signal.Signals(-status).name})"
    return f"was killed by signal {-status}"
