"""Products with packed weights against float32, at every level of instructions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw_cpu_kernels import library, positions, products

_SMALL = st.integers(1, 100)
# A result is rounded once; sums of products of bfloat16 are float32, in whatever order.
_ROUNDING = 2**-8


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def _check(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    found = products.linear(weight.shape[0], input, products.pack(weight), bias).double()
    wide, table = input.double(), weight.double()
    wanted, sizes = wide @ table.T, wide.abs() @ table.abs().T
    if bias is not None:
        wanted, sizes = wanted + bias.double(), sizes + bias.double().abs()
    bound = wanted.abs() * _ROUNDING + sizes * 1e-6 + 1e-30
    assert bool(((found - wanted).abs() <= bound).all()), f"{tuple(input.shape)} by {tuple(weight.shape)}"


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65, 70])
def test_any_number_of_rows_is_multiplied(level: str, num_rows: int) -> None:
    for num_outputs, num_inputs in ((96, 64), (150, 96), (33, 576), (16, 32)):
        _check(_random(num_rows, num_inputs), _random(num_outputs, num_inputs, seed=1))


@pytest.mark.parametrize("name", library.LEVELS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    num_rows=st.integers(1, 70), num_inputs=_SMALL, num_outputs=_SMALL, has_bias=st.booleans(), seed=st.integers(0, 99)
)
def test_odd_sizes_are_multiplied(
    name: str, num_rows: int, num_inputs: int, num_outputs: int, has_bias: bool, seed: int
) -> None:
    best = library.LEVELS.index(library.best_level() or library.LEVELS[0])
    library.use_level(library.LEVELS[min(library.LEVELS.index(name), best)])
    try:
        bias = _random(num_outputs, seed=seed + 2) if has_bias else None
        _check(_random(num_rows, num_inputs, seed=seed), _random(num_outputs, num_inputs, seed=seed + 1), bias)
    finally:
        library.use_level(None)


def test_rows_may_lie_apart(level: str) -> None:
    for num_rows in (1, 7, 40):
        wide = _random(num_rows, 200)
        weight = _random(48, 64, seed=1)
        packed = products.pack(weight)
        for part in (wide[:, 3:67], wide[:, 136:]):
            assert torch.equal(products.linear(48, part, packed, None), products.linear(48, part.clone(), packed, None))


def test_a_weight_that_lies_apart_is_packed_as_it_reads() -> None:
    weight = _random(70, 40)
    assert torch.equal(products.pack(weight[:, ::2]), products.pack(weight[:, ::2].clone()))
    assert torch.equal(products.pack(weight.T), products.pack(weight.T.contiguous()))


def test_no_rows_give_no_rows(level: str) -> None:
    assert products.linear(48, _random(0, 64), products.pack(_random(48, 64)), None).shape == (0, 48)


def test_what_lies_beyond_a_row_is_not_read_into_it(level: str) -> None:
    weight = _random(20, 33, seed=1)
    for num_rows in (1, 9, 20):
        memory = torch.full((num_rows + 2, 64), float("nan"), dtype=torch.bfloat16)
        memory[:num_rows, :33] = _random(num_rows, 33)
        assert not products.linear(20, memory[:num_rows, :33], products.pack(weight), None).isnan().any()


def test_a_plain_weight_is_taken_too(level: str) -> None:
    input, weight = _random(3, 40), _random(8, 40, seed=1)
    assert torch.equal(products.linear(8, input, weight, None), torch.nn.functional.linear(input, weight))


def test_rows_are_looked_up_in_a_packed_weight_bit_for_bit(level: str) -> None:
    weight = _random(70, 96)
    ids = torch.tensor([0, 69, 15, 16, 16, 33])
    for table in (weight, products.pack(weight)):
        assert torch.equal(positions.embedding(ids, table), weight[ids])


def test_an_id_that_is_not_there_gives_zeros(level: str) -> None:
    weight = _random(32, 64)
    for table in (weight, products.pack(weight)):
        assert torch.equal(positions.embedding(torch.tensor([-1, 32, 10**12]), table), torch.zeros(3, 64).bfloat16())
