from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from corefw.builtins.platforms import huge_pages
from corefw.builtins.platforms.cpu_runtime import CpuRuntime

KERNEL = huge_pages.unavailable_reason()


_IN_A_FRESH_HEAP = """
import torch
from corefw.builtins.ops.packed_linear import can_pack, pack
from corefw.builtins.platforms import huge_pages
from corefw.builtins.platforms.cpu_runtime import CpuRuntime

weights = [torch.randn(2**20) for _ in range(16)]
if can_pack():
    weights.append(pack(torch.randn(2048, 2048).bfloat16()))
kept = [weight.to_dense().clone() if weight.is_mkldnn else weight.clone() for weight in weights]
before = huge_pages.bytes_in_use()
settled = CpuRuntime().settle_weights(iter(weights))
print(settled.what, settled.chosen)
print(huge_pages.bytes_in_use() - before > 32 * 2**20)
print(all(torch.equal(w.to_dense() if w.is_mkldnn else w, v) for w, v in zip(weights, kept, strict=True)))
"""


@pytest.mark.skipif(KERNEL is not None, reason=f"hardware or kernel without huge pages: {KERNEL}")
def test_weights_are_moved_into_huge_pages_and_stay_as_they_were() -> None:
    # A heap that has been in use may lie in huge pages already.
    plain = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    done = subprocess.run(
        [sys.executable, "-c", _IN_A_FRESH_HEAP], env=plain, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split("\n")[:3] == ["pages of weights huge", "True", "True"]


@pytest.mark.skipif(KERNEL is not None, reason=f"hardware or kernel without huge pages: {KERNEL}")
def test_a_page_that_was_begun_is_completed_and_one_that_nobody_touched_is_not() -> None:
    page = huge_pages.HUGE_PAGE_BYTES
    with mmap.mmap(-1, 5 * page, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        first = -address % page
        # Otherwise there are no small pages where the operator wants huge ones everywhere.
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        memory[first + 5] = 7
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory[first + 2 * page] = 9
        assert _num_present(address, 5 * page) == 1 + page // mmap.PAGESIZE
        assert huge_pages.complete() >= page
        assert _num_present(address, 5 * page) == 2 * page // mmap.PAGESIZE
        assert (memory[first + 5], memory[first + 2 * page], memory[first + 6]) == (7, 9, 0)


def _num_present(begin: int, size: int) -> int:
    """Small pages' worth of memory that is there."""
    present = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(begin), ctypes.c_size_t(size), present) == 0
    return sum(page & 1 for page in present)


def test_a_few_weights_stay_where_they_are() -> None:
    settled = CpuRuntime().settle_weights([torch.zeros(1000)])
    assert (settled.chosen, settled.reason) == ("small", "3 KiB of weights fit into caches")


@pytest.mark.parametrize(
    ("setting", "reason"),
    [("always [madvise] never", None), ("[always] madvise never", None), ("always madvise [never]", "set to never")],
)
def test_what_the_operator_turned_off_is_left_off(tmp_path: Path, setting: str, reason: str | None) -> None:
    switch = tmp_path / "enabled"
    switch.write_text(f"{setting}\n")
    found = huge_pages.unavailable_reason(switch)
    assert (found is None) if reason is None else (found is not None and reason in found)


def test_a_kernel_without_huge_pages_is_told(tmp_path: Path) -> None:
    assert huge_pages.unavailable_reason(tmp_path / "absent") == "this kernel has no transparent huge pages"


def test_pieces_that_share_or_adjoin_huge_pages_are_moved_as_one_run() -> None:
    page = huge_pages.HUGE_PAGE_BYTES
    pieces = [(9 * page, page), (2 * page + 5, 10), (3 * page, page + 1), (2 * page, 0), (7 * page - 1, 2)]
    assert list(huge_pages._runs(pieces)) == [(2 * page, 3 * page), (6 * page, 2 * page), (9 * page, page)]
    assert list(huge_pages._runs([])) == []
