"""The line on standard output that says where the server is; nothing there can hold the server up or end it."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading

from corefw.observability.logging import get_logger

__all__ = ["announce"]

logger = get_logger(__name__)


def announce(url: str) -> None:
    """Write the line, from a thread of its own: a full pipe that nobody reads blocks that thread alone."""
    threading.Thread(target=_write, args=(f"corefw is ready on {url}\n",), name="ready-line", daemon=True).start()


def _write(text: str) -> None:
    try:
        if sys.stdout is None:  # so Python starts when the descriptor is closed
            raise OSError("it is closed")
        descriptor = _descriptor()
        if descriptor is None:
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        # Past the buffer of sys.stdout: a thread that waits inside it would hold its lock, which the
        # interpreter needs at the end, and what couldn't be written would fail once more then.
        data = text.encode()
        while data:
            data = data[os.write(descriptor, data) :]
    except (OSError, ValueError) as error:
        logger.warning("could not write the ready line to standard output: %s", error)


def _descriptor() -> int | None:
    with contextlib.suppress(io.UnsupportedOperation):  # a stream in memory
        return sys.stdout.fileno()
    return None
