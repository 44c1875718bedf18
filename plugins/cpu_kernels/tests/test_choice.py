"""The most likely token of each row: that of torch's own search, of equal ones the first."""

from __future__ import annotations

import pytest
import torch

from corefw_cpu_kernels.choice import most_likely

WIDTHS = (1, 31, 32, 33, 1000, 49_152)


@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_the_first_of_the_largest(width: int, level: str) -> None:
    noise = torch.Generator().manual_seed(width)
    logits = (torch.randn(5, width + 9, generator=noise) * 3).bfloat16()
    logits[1] = -torch.inf
    logits[2] = torch.tensor([0.0, -0.0]).bfloat16().repeat(width + 9)[: width + 9].roll(1)
    logits[3] = 2.0
    values, ids = most_likely(logits, width)
    expected = logits[:, :width].max(dim=-1)
    assert torch.equal(ids, expected.indices)
    assert torch.equal(values, expected.values)


@pytest.mark.parametrize("nan", [torch.nan, -torch.nan])
def test_what_is_no_number_is_found(nan: float, level: str) -> None:
    logits = torch.full((2, 100), torch.inf).bfloat16()
    logits[1, 70] = nan
    values, ids = most_likely(logits, 100)
    assert values[0].isinf()
    assert values[1].isnan()
    assert ids.tolist() == [0, 70]
