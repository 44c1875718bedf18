"""The CPU platform, worker half."""

from __future__ import annotations

import ctypes
import random
import resource
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from corefw import env
from corefw.builtins.platforms import huge_pages
from corefw.host import Host
from corefw.interfaces.platform import DeviceRuntime
from corefw.interfaces.selection import Rejected, Selection

if TYPE_CHECKING:
    from corefw.interfaces.graphs import GraphCapture

__all__ = ["CpuRuntime"]

_RESET_PEAK = "5"  # proc(5), clear_refs: "reset the peak resident set size to the current value"

# Other programs live in the same memory, so the cache takes a share of what is free, and no more than serves a CPU.
_CACHE_SHARE = 0.5
_MAX_CACHE_BYTES = 4 * 2**30

# malloc.h; glibc takes no larger one for the first.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_IN_HEAP_BYTES, _MAX_KEPT_BYTES = 32 * 2**20, 256 * 2**20

# Less than that is mostly in the caches of a processor and of its address translation.
_MIN_HUGE_BYTES = 8 * huge_pages.HUGE_PAGE_BYTES


class CpuRuntime(DeviceRuntime):
    """Memory is what the machine or container has left; peaks are of this process's resident set."""

    def __init__(self, host: Host | None = None) -> None:
        self._host = host or Host()
        # torch's own number honours OMP_NUM_THREADS, but neither a container's quota nor other ranks.
        if not env.num_threads_are_chosen():
            torch.set_num_threads(min(torch.get_num_threads(), self._host.usable_cpus()))

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def total_memory_bytes(self) -> int:
        return self._host.total_memory_bytes()

    def free_memory_bytes(self) -> int:
        return self._host.available_memory_bytes()

    def cache_budget_bytes(self, headroom_bytes: int) -> int:
        return min(int(headroom_bytes * _CACHE_SHARE * self._host.part()), _MAX_CACHE_BYTES)

    def peak_memory_bytes(self) -> int:
        try:
            status = (self._host.proc / "self" / "status").read_text()
        except OSError:
            return _peak_since_start_bytes()
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return _peak_since_start_bytes()

    def reset_peak_memory(self) -> None:
        """Where the kernel refuses, peaks count from the start of the process: too large, which is the safe side."""
        clear_refs: Path = self._host.proc / "self" / "clear_refs"
        try:
            clear_refs.write_text(_RESET_PEAK)
        except OSError:
            return

    def seed_everything(self, seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)

    def settle_weights(self, tensors: Iterable[torch.Tensor]) -> Selection:
        _give_back_unused()
        held = list(tensors)
        reason = huge_pages.unavailable_reason() or _too_small(held)
        if reason is not None:
            return Selection("pages of weights", "small", reason)
        size = huge_pages.collapse(map(_extent, held))
        huge = min(huge_pages.bytes_in_use(), size)
        reason = f"{huge // 2**20} of {size // 2**20} MiB, read without waiting for address translation"
        return Selection("pages of weights", "huge", reason, (Rejected("small", "slower to read"),))

    def settle_memory(self) -> None:
        _keep_freed_memory()
        if huge_pages.unavailable_reason() is None:
            huge_pages.complete()

    def graph_capture(self, offered: Sequence[GraphCapture]) -> GraphCapture | None:
        return offered[0] if offered else None

    def synchronize(self) -> None:
        return


def _give_back_unused() -> None:
    """What loading left in the heap; only glibc does that when it is asked."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _keep_freed_memory() -> None:
    """Let what one layer has freed serve the next one.

    As it comes, glibc gives large pieces back to the kernel and gets them anew, page by page: a tenth of the time of a
    step of 2,048 tokens went there.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, _LARGEST_IN_HEAP_BYTES)
        set_option(_M_TRIM_THRESHOLD, _MAX_KEPT_BYTES)


def _too_small(tensors: Iterable[torch.Tensor]) -> str | None:
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return f"{size // 1024} KiB of weights fit into caches" if size < _MIN_HUGE_BYTES else None


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Address and bytes of the memory that a tensor is in."""
    if tensor.is_mkldnn:
        return torch.ops.mkldnn.data_ptr(tensor), torch.ops.mkldnn._nbytes(tensor)
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _peak_since_start_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
