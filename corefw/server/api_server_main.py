"""``python -m corefw.server.api_server_main``: one of several processes that answer HTTP requests over one engine.

Imports the standard library alone until the process is tied to its parent's life.
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
    """Serve until the parent says stop; returns the exit status."""
    faulthandler.enable(2)
    arguments = _arguments()
    control, engine, listening = (
        socket.socket(fileno=descriptor)
        for descriptor in (arguments.control_fd, arguments.engine_fd, arguments.listen_fd)
    )
    for one in (control, engine, listening):
        one.set_inheritable(False)
    guard = ParentGuard(arguments.parent_pid, control)
    guard.arm(death_signal=arguments.death_signal)

    from corefw.server.api_server import run_api_server  # only now: the guard is armed

    return run_api_server(control, engine, listening, arguments.parent_pid)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m corefw.server.api_server_main", allow_abbrev=False)
    for name in ("--control-fd", "--engine-fd", "--listen-fd", "--parent-pid"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--death-signal", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
