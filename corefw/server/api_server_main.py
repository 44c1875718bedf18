"""``python -m corefw.server.api_server_main``: one of several processes that answer HTTP requests over one engine.

Imports the standard library alone until the process is tied to its parent's life.
"""

from __future__ import annotations

import argparse
import faulthandler
import socket

from corefw.engine.step_board import StepBoard
from corefw.parent_guard import ParentGuard, leave

__all__ = ["main"]


def main() -> int:
    """Serve until the parent says stop; returns the exit status."""
    faulthandler.enable(2)
    arguments = _arguments()
    _, control = ParentGuard.of(arguments)
    board = StepBoard(arguments.board_fd)
    board.start_beating()
    engine, listening = (socket.socket(fileno=descriptor) for descriptor in (arguments.engine_fd, arguments.listen_fd))
    for one in (engine, listening):
        one.set_inheritable(False)

    from corefw.server.api_server import run_api_server  # only now: the guard is armed

    return run_api_server(control, engine, listening, board, arguments.parent_pid)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m corefw.server.api_server_main", allow_abbrev=False)
    ParentGuard.add_flags(parser)
    for name in ("--engine-fd", "--listen-fd", "--board-fd"):
        parser.add_argument(name, type=int, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    leave(main())
