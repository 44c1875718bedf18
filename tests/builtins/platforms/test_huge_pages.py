from __future__ import annotations

from pathlib import Path

import pytest
import torch

from corefw.builtins.ops.packed_linear import can_pack, pack
from corefw.builtins.platforms import huge_pages
from corefw.builtins.platforms.cpu_runtime import CpuRuntime

MIB = 2**20
KERNEL = huge_pages.unavailable_reason()


@pytest.mark.skipif(KERNEL is not None, reason=f"hardware or kernel without huge pages: {KERNEL}")
def test_weights_are_moved_into_huge_pages_and_stay_as_they_were() -> None:
    weights = [torch.randn(MIB) for _ in range(16)]
    if can_pack():
        weights.append(pack(torch.randn(2048, 2048).bfloat16()))
    kept = [weight.to_dense().clone() if weight.is_mkldnn else weight.clone() for weight in weights]
    before = huge_pages.bytes_in_use()
    settled = CpuRuntime().settle_weights(iter(weights))
    assert (settled.what, settled.chosen) == ("pages of weights", "huge")
    assert huge_pages.bytes_in_use() - before > 32 * MIB
    for weight, value in zip(weights, kept, strict=True):
        assert torch.equal(weight.to_dense() if weight.is_mkldnn else weight, value)


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
