"""``python -m corefw.engine.core_main``: the engine core's process.

Imports the standard library alone until the process is tied to its parent's life; everything heavy comes after.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import importlib
import threading

from corefw.parent_guard import ParentGuard, leave

__all__ = ["main"]


def main() -> int:
    """Run the core until it is told to stop; returns the exit status."""
    faulthandler.enable(2)  # a plugin's native code that crashes leaves the place where it did
    gc.disable()  # imports make no garbage to speak of, and collections take a fifth of their time
    arguments = _arguments()
    guard, control = ParentGuard.of(arguments)
    preload = threading.Thread(target=_preload, args=(arguments.preload,), name="preload", daemon=True)
    preload.start()

    from corefw.engine.core_process import run_core  # only now: the guard is armed and the slow imports are under way

    return run_core(control, guard, preload.join, arguments.board_fd)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m corefw.engine.core_main", allow_abbrev=False)
    ParentGuard.add_flags(parser)
    parser.add_argument("--board-fd", type=int, required=True)
    parser.add_argument("--preload", action="append", default=[])
    return parser.parse_args()


def _preload(modules: list[str]) -> None:
    for module in modules:
        # A module that is needed is imported again by whoever needs it, and raises there.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


if __name__ == "__main__":
    leave(main())
