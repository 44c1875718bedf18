"""``python -m corefw.runtime.worker_main``: the process of one rank, a child of the process that has the executor.

Imports the standard library alone until the process is tied to its parent's life; everything heavy comes after.
"""

from __future__ import annotations

import argparse
import faulthandler

from corefw.parent_guard import ParentGuard, leave

__all__ = ["main"]


def main() -> int:
    """Be a worker until told to stop; returns the exit status."""
    faulthandler.enable(2)  # native code that crashes leaves the place where it did
    arguments = _arguments()
    _, control = ParentGuard.of(arguments)

    from corefw.runtime.worker_process import run_worker  # only now: the guard is armed

    return run_worker(control, arguments.commands, arguments.answers)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m corefw.runtime.worker_main", allow_abbrev=False)
    ParentGuard.add_flags(parser)
    parser.add_argument("--commands", required=True)
    parser.add_argument("--answers", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    leave(main())
