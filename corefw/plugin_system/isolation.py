"""What a plugin that is being loaded can't do to the process."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from corefw.deprecation import blamed_on

__all__ = ["SLOW_S", "contained"]

SLOW_S = 10.0
"""After so many seconds the log says who is still being loaded."""

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def contained(owner: str) -> Iterator[None]:
    """Load a plugin without letting it disturb others.

    What it prints goes to standard error: standard output may be a command's result. The working directory is put back.
    What it adds to ``sys.path`` stays, but behind what was there, so that it replaces nobody's modules. A plugin can't
    be stopped while it is loaded; one that takes long is named in the log. A copy of the process that it forked ends
    here: it would go on like the original, with the same sockets. One that ends the process with ``os._exit`` is named
    on standard error first; one that crashes it natively can't be. Only a child process survives either: see
    ``corefw.plugin_system.probe``.
    """
    folder, path, process = _working_directory(), list(sys.path), os.getpid()
    watch = threading.Timer(SLOW_S, logger.warning, ("plugin %s is still being loaded after %.0f s", owner, SLOW_S))
    watch.daemon = True
    watch.start()
    try:
        with contextlib.redirect_stdout(sys.stderr), blamed_on(owner), _named_if_it_exits(owner):
            yield
    finally:
        if os.getpid() != process:
            os._exit(1)
        watch.cancel()
        _restore_directory(owner, folder)
        _restore_path(owner, path)


@contextlib.contextmanager
def _named_if_it_exits(owner: str) -> Iterator[None]:
    """``os._exit`` runs no handler and flushes nothing, so that the process would be gone without a word."""
    original, thread, process = os._exit, threading.get_ident(), os.getpid()

    def named_exit(status: int) -> NoReturn:
        if (threading.get_ident(), os.getpid()) == (thread, process):
            words = f"corefw: plugin {owner} ends the process with os._exit({status}) while it is loaded\n"
            with contextlib.suppress(OSError):
                os.write(2, words.encode(errors="replace"))
        original(status)

    os._exit = named_exit
    try:
        yield
    finally:
        os._exit = original


def _working_directory() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # it was removed
        return None


def _restore_directory(owner: str, before: Path | None) -> None:
    if before is not None and _working_directory() != before:
        logger.warning("plugin %s changed the working directory; it is put back", owner)
        os.chdir(before)


def _restore_path(owner: str, before: list[str]) -> None:
    if sys.path == before:
        return
    added = [entry for entry in sys.path if entry not in before]
    sys.path[:] = [*before, *added]
    logger.warning(
        "plugin %s changed sys.path; what it added comes last: %s", owner, ", ".join(map(str, added))[:300] or "nothing"
    )
