"""``python -m corefw.runtime.worker_main``: the process of one rank, a child of the process that has the executor.

Imports the standard library alone until the process is tied to its parent's life; everything heavy comes after.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import socket
import sys

from corefw.parent_guard import ParentGuard

__all__ = ["main"]


def main() -> int:
    """Be a worker until told to stop; returns the exit status."""
    faulthandler.enable(2)  # native code that crashes leaves the place where it did
    arguments = _arguments()
    control = socket.socket(fileno=arguments.control_fd)
    control.set_inheritable(False)
    ParentGuard(arguments.parent_pid, control).arm(death_signal=arguments.death_signal)

    from corefw.runtime.worker_process import run_worker  # only now: the guard is armed

    return run_worker(control, arguments.commands, arguments.answers)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m corefw.runtime.worker_main", allow_abbrev=False)
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--commands", required=True)
    parser.add_argument("--answers", required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--death-signal", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    status = main()
    # Everything is sent and closed. Taking torch's modules apart would only cost a second of a stop.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
