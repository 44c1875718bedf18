"""Lines of files and of standard input and output, ``-`` being those."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TextIO

from corefw.errors import ConfigError

__all__ = ["open_input", "open_output"]


def open_input(name: str) -> AbstractContextManager[TextIO]:
    """Open a file to read.

    Raises:
        ConfigError: it can't be; in the block, when a line that is read isn't UTF-8.
    """
    return _decoded(name)


def open_output(name: str) -> AbstractContextManager[TextIO]:
    """Open a file to write.

    Raises:
        ConfigError: it can't be.
    """
    return _opened(name, "w", sys.stdout, "written")


@contextmanager
def _decoded(name: str) -> Iterator[TextIO]:
    with _opened(name, "r", sys.stdin, "read") as file:
        try:
            yield file
        except UnicodeDecodeError as error:
            raise ConfigError(f"{name[:200]!r} can't be read: it isn't UTF-8 ({error.reason})") from None


@contextmanager
def _opened(name: str, mode: str, standard: TextIO, done: str) -> Iterator[TextIO]:
    if name == "-":
        yield standard
        return
    with contextlib.ExitStack() as stack:
        try:
            file: TextIO = stack.enter_context(Path(name).open(mode, encoding="utf-8"))  # type: ignore[assignment]
        except OSError as error:
            raise ConfigError(f"{name[:200]!r} can't be {done}: {error.strerror}") from None
        yield file
