"""The most likely token of each row is that of torch's own search, of equal ones the first; a random one, the op's."""

from __future__ import annotations

import pytest
import torch

from corefw.models.ops.definitions import drawn as reference
from corefw_cpu_kernels.choice import drawn, most_likely

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


def _columns(num_rows: int, noise: torch.Generator) -> tuple[torch.Tensor, ...]:
    def random(*choices: float) -> torch.Tensor:
        values = torch.tensor(choices, dtype=torch.float64)
        return values[torch.randint(0, len(choices), (num_rows,), generator=noise)]

    return (
        random(0.0, 0.01, 0.7, 1.0, 2.0, 50.0),
        random(0, 0, 1, 3, 40, 5000, 100_000).long(),
        random(1.0, 1.0, 1e-9, 0.3, 0.9, 0.999),
        random(0.0, 0.0, 0.05, 1.0),
        torch.rand(num_rows, generator=noise, dtype=torch.float64).clamp(1e-16, 1 - 1e-16),
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_drawn_tokens_are_those_of_the_reference(width: int, level: str) -> None:
    noise = torch.Generator().manual_seed(width)
    num_rows = 40 if width > 10_000 else 300
    logits = (torch.randn(num_rows, width + 5, generator=noise) * 4).bfloat16()
    logits[0], logits[1], logits[2, 0] = 1.5, -torch.inf, torch.nan  # all equal; nothing to choose; no number
    logits[3, 1:] = -torch.inf
    columns = _columns(num_rows, noise)
    values, ids = drawn(logits, width, *columns)
    expected_values, expected_ids = reference(logits, width, *columns)
    torch.testing.assert_close(values, expected_values, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(ids, expected_ids)


def test_tokens_are_drawn_as_often_as_they_are_likely(level: str) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).bfloat16().expand(20_000, 4)
    ones, zeros = torch.ones(20_000, dtype=torch.float64), torch.zeros(20_000, dtype=torch.float64)
    numbers = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    _, ids = drawn(logits, 4, ones * 0.5, torch.full((20_000,), 3), ones, zeros, numbers)
    wanted = torch.tensor([0.0, 2.0, 4.0, -torch.inf]).softmax(-1)
    assert torch.allclose(ids.bincount(minlength=4) / 20_000, wanted, atol=1e-4)
