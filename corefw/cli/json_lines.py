"""Lines of files and of standard input and output, ``-`` being those."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from corefw.errors import ConfigError

__all__ = ["open_input", "open_output"]


@contextmanager
def open_input(name: str) -> Iterator[TextIO]:
    """Open a file to read.

    Raises:
        ConfigError: it can't be.
    """
    if name == "-":
        yield sys.stdin
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(Path(name).open(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{name[:200]!r} can't be read: {error.strerror}") from None
        yield file


@contextmanager
def open_output(name: str) -> Iterator[TextIO]:
    """Open a file to write.

    Raises:
        ConfigError: it can't be.
    """
    if name == "-":
        yield sys.stdout
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(Path(name).open("w", encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{name[:200]!r} can't be written: {error.strerror}") from None
        yield file
