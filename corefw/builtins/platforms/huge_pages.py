"""Memory in pages of 2 MiB instead of 4 KiB, so that reading weights doesn't wait for address translation.

Measured in a virtual machine, where a translation walks two tables: all products of a 135M model take 2.5 times less
time with one row, and half the time with 512. Linux only; elsewhere, and where the operator has turned transparent huge
pages off, memory stays as it is.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

__all__ = ["HUGE_PAGE_BYTES", "bytes_in_use", "collapse", "unavailable_reason"]

HUGE_PAGE_BYTES = 2 * 2**20
_MADV_COLLAPSE = 25  # Linux 6.1; asm-generic/mman-common.h
_SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_USAGE = Path("/proc/self/smaps_rollup")


def unavailable_reason(switch: Path = _SWITCH) -> str | None:
    """None where huge pages can be asked for, else why not."""
    try:
        setting = switch.read_text()
    except OSError:
        return "this kernel has no transparent huge pages"
    return f"{switch} is set to never" if "[never]" in setting else None


def collapse(tensors: Iterable[torch.Tensor]) -> int:
    """Move what lies in these tensors to huge pages, in place, as far as the kernel has any. Costs one copy.

    Returns:
        bytes of the huge pages that hold the tensors, when all were to be had.
    """
    total = 0
    for start, size in _runs(tensors):
        total += size
        _advise(start, size, mmap.MADV_HUGEPAGE)
        _advise(start, size, _MADV_COLLAPSE)
    return total


def bytes_in_use() -> int:
    """What this process has in huge pages."""
    try:
        lines = _USAGE.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("AnonHugePages:"))


def _runs(tensors: Iterable[torch.Tensor]) -> Iterator[tuple[int, int]]:
    """Address and bytes of the runs of huge pages that the tensors touch: few calls, for each stops all processors."""
    extents = sorted(extent for tensor in tensors if (extent := _extent(tensor))[1])
    run: tuple[int, int] | None = None
    for start, size in extents:
        first, last = start // HUGE_PAGE_BYTES, -(-(start + size) // HUGE_PAGE_BYTES)
        if run is not None and first <= run[1]:
            run = (run[0], max(run[1], last))
            continue
        if run is not None:
            yield run[0] * HUGE_PAGE_BYTES, (run[1] - run[0]) * HUGE_PAGE_BYTES
        run = (first, last)
    if run is not None:
        yield run[0] * HUGE_PAGE_BYTES, (run[1] - run[0]) * HUGE_PAGE_BYTES


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Address and bytes."""
    if tensor.is_mkldnn:
        return torch.ops.mkldnn.data_ptr(tensor), torch.ops.mkldnn._nbytes(tensor)
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _advise(start: int, size: int, advice: int) -> None:
    # What the kernel refuses (the edges of a mapping, or when it has no huge page left) stays as it is.
    _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), ctypes.c_int(advice))


_libc = ctypes.CDLL(None, use_errno=True)
