"""What an engine may leave behind: child processes, threads, socket folders."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def exists(pid: int) -> bool:
    """Whether a process runs; one that was killed and waits to be reaped doesn't."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def children() -> set[int]:
    """Children of this process, unreaped ones included."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(stat.parent.name))
    return found


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll; False when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@contextlib.contextmanager
def nothing_left(directory: Path) -> Iterator[None]:
    """What is there at the end must have been there at the beginning."""
    threads, processes, open_files = set(threading.enumerate()), children(), _open_files()
    yield
    assert children() <= processes
    assert wait_until(lambda: set(threading.enumerate()) <= threads, 5)  # one that was told to end may be on its way
    assert list(directory.iterdir()) == []
    assert wait_until(lambda: _open_files() <= open_files, 1)  # ZMQ closes its own a little later


@contextlib.contextmanager
def short_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory for the test alone, whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="t-") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
