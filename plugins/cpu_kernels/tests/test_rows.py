"""Norms, activations and rope of odd sizes, against float64."""

from __future__ import annotations

import pytest
import torch

from corefw.models.ops import definitions
from corefw_cpu_kernels import activations, norms, positions

_ROUNDING = 2**-8
_WIDTHS = (1, 7, 8, 15, 16, 17, 31, 33, 64, 577)


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3).bfloat16()


def _is_near(found: torch.Tensor, wanted: torch.Tensor, absolute: float = 1e-6) -> bool:
    return bool(((found.double() - wanted).abs() <= wanted.abs() * _ROUNDING + absolute).all())


@pytest.mark.parametrize("width", _WIDTHS)
def test_a_norm_is_rounded_once(level: str, width: int) -> None:
    input, weight = _random(5, width), _random(width, seed=1)
    plain = definitions.rms_norm(input.double(), weight.double(), 1e-5)
    shifted = definitions.rms_norm_plus_one(input.double(), weight.double(), 1e-5).double()
    assert _is_near(norms.rms_norm(input, weight, 1e-5), plain)
    assert _is_near(norms.rms_norm_plus_one(input, weight, 1e-5), shifted, 1e-5)


@pytest.mark.parametrize("width", _WIDTHS)
def test_the_norm_after_an_addition_is_the_norm_of_the_rounded_sum(level: str, width: int) -> None:
    input, residual, weight = _random(5, width), _random(5, width, seed=2), _random(width, seed=1)
    for add_norm, norm in (
        (norms.add_rms_norm, norms.rms_norm),
        (norms.add_rms_norm_plus_one, norms.rms_norm_plus_one),
    ):
        found, total = add_norm(input, residual, weight, 1e-5)
        assert torch.equal(total, input + residual)
        assert torch.equal(found, norm(total, weight, 1e-5))


@pytest.mark.parametrize("width", _WIDTHS)
def test_an_activation_is_rounded_once(level: str, width: int) -> None:
    input = _random(5, 2 * width)
    input[0, 0], input[1, 0], input[2, 0] = 200.0, -200.0, 0.0
    wide = input.double()
    assert _is_near(activations.silu_and_mul(input), definitions.silu_and_mul(wide), 1e-5)
    assert _is_near(activations.gelu_tanh_and_mul(input), definitions.gelu_tanh_and_mul(wide), 1e-5)
    assert _is_near(activations.soft_cap(input, 30.0), definitions.soft_cap(wide, 30.0), 1e-5)


@pytest.mark.parametrize(("size", "rotated"), [(64, 64), (64, 32), (10, 6), (256, 256), (34, 34), (8, 0)])
def test_heads_are_turned_and_the_rest_of_them_copied(level: str, size: int, rotated: int) -> None:
    qkv = _random(7, 5 * size)
    query, key = qkv[:, : 3 * size], qkv[:, 3 * size :]
    at = torch.tensor([0, 1, 5, 5, 19, 3, 2])
    table = torch.rand(20, rotated, generator=torch.Generator().manual_seed(3)) * 2 - 1
    found = positions.rotary_embedding(query, key, at, table, size)
    wanted = definitions.rotary_embedding(query.double(), key.double(), at, table.double(), size)
    for left, right in zip(found, wanted, strict=True):
        assert _is_near(left, right, 1e-5)
        assert torch.equal(
            left.unflatten(1, (-1, size))[..., rotated:].double(), right.unflatten(1, (-1, size))[..., rotated:]
        )


def test_rows_of_another_order_of_memory_are_taken(level: str) -> None:
    input, weight = _random(40, 6).T, _random(40, seed=1)
    assert torch.equal(norms.rms_norm(input, weight, 1e-5), norms.rms_norm(input.contiguous(), weight, 1e-5))
    assert torch.equal(activations.silu_and_mul(input), activations.silu_and_mul(input.contiguous()))


def test_no_rows_are_no_work(level: str) -> None:
    empty = _random(0, 64)
    assert norms.rms_norm(empty, _random(64), 1e-5).shape == (0, 64)
    assert activations.silu_and_mul(empty).shape == (0, 32)
    assert activations.soft_cap(empty, 2.0).shape == (0, 64)
    assert positions.embedding(torch.empty(0, dtype=torch.int64), _random(4, 64)).shape == (0, 64)


@pytest.mark.parametrize("num_rows", [1, 3, 200])
def test_a_row_does_not_depend_on_its_neighbours(level: str, num_rows: int) -> None:
    input, weight = _random(num_rows, 578), _random(578, seed=1)
    last = input[-1:].clone()
    assert torch.equal(norms.rms_norm(input, weight, 1e-5)[-1:], norms.rms_norm(last, weight, 1e-5))
    assert torch.equal(activations.silu_and_mul(input)[-1:], activations.silu_and_mul(last))
    assert torch.equal(activations.soft_cap(input, 3.0)[-1:], activations.soft_cap(last, 3.0))
