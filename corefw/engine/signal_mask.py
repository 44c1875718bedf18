"""Starting a child that the terminal's signals don't reach."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

__all__ = ["blocked_signals"]


@contextlib.contextmanager
def blocked_signals() -> Iterator[None]:
    """A block in which a child is started; it inherits the mask.

    A Ctrl-C or a SIGTERM to the whole group is the parent's to handle, also while the child can't yet ignore it.
    """
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
