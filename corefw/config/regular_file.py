"""Opens what the operator or a model names, and only regular files: a pipe or a device would hold the start up."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

__all__ = ["check_regular", "open_regular", "read_regular_text"]

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def check_regular(path: Path) -> None:
    """Look at a file without opening it, for readers that open files by name; links are followed.

    Raises:
        OSError: it isn't there, or isn't a regular file; ``strerror`` says what it is.
    """
    _check(path, path.stat())


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read, without ever waiting for its other end.

    Raises:
        OSError: it can't be opened, or isn't a regular file; ``strerror`` says what it is.
    """
    check_regular(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check(path, os.fstat(descriptor))  # it may have been replaced since
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular_text(path: Path, max_bytes: int | None = None) -> str:
    """A file's text, without the mark of byte order that some editors put first.

    Raises:
        OSError: as ``open_regular``, or there are more than ``max_bytes``.
        UnicodeDecodeError: it isn't UTF-8.
    """
    with open_regular(path) as file:
        raw = file.read() if max_bytes is None else file.read(max_bytes + 1)
    if max_bytes is not None and len(raw) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", str(path))
    return raw.decode("utf-8-sig")


def _check(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = next((text for test, text in _KINDS if test(found.st_mode)), "something else")
        raise OSError(errno.EINVAL, f"isn't a regular file, but {kind}", str(path))
