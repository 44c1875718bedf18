"""Memory for packed weights, in pages of 2 MiB from the first touch on where the operator wants those.

Moving weights there afterwards would copy them once more, and most weights don't fill such a page by themselves.
"""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
import torch

__all__ = ["WeightMemory", "new_weight"]

_PAGE_BYTES = 2 * 2**20
_ALIGNMENT = 64


class WeightMemory:
    """Chunks that weights share one after the other. A chunk goes with the last weight in it.

    Args:
        chunk_bytes: of a chunk; a larger weight gets one of its own. What isn't touched costs nothing.
    """

    def __init__(self, chunk_bytes: int = 32 * _PAGE_BYTES) -> None:
        self._chunk_bytes = chunk_bytes
        self._lock = threading.Lock()
        self._chunk: weakref.ref[Any] | None = None
        self._taken = self._end = 0

    def new(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor that is to stay."""
        num_bytes = math.prod(shape) * dtype.itemsize
        with self._lock:
            chunk = None if self._chunk is None else self._chunk()
            if chunk is None or self._taken + num_bytes > self._end:
                chunk = self._new_chunk(max(num_bytes, self._chunk_bytes))
            part = chunk[self._taken : self._taken + num_bytes]
            self._taken += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        return torch.from_numpy(part).view(dtype).view(shape)

    def _new_chunk(self, num_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        memory = mmap.mmap(-1, num_bytes + _PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        chunk = np.frombuffer(memory, np.uint8)
        self._chunk = weakref.ref(chunk)
        self._taken = -chunk.ctypes.data % _PAGE_BYTES
        self._end = self._taken + num_bytes
        return chunk


new_weight = WeightMemory().new
