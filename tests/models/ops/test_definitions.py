from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from corefw.builtins.ops.torch_ops import TorchOps
from corefw.interfaces.op_provider import OpRequest
from corefw.models.layers.block_quantizers import quantised_4_bits, quantised_8_bits
from corefw.models.ops.schema import get_op, op_names

sizes = st.integers(1, 9)


def linear_case(draw: Any) -> tuple[Any, ...]:
    tokens, inner, outer = draw(st.integers(0, 40)), draw(sizes), draw(sizes)
    bias = torch.randn(outer) if draw(st.booleans()) else None
    return torch.randn(tokens, inner), torch.randn(outer, inner), bias


def embedding_case(draw: Any) -> tuple[Any, ...]:
    vocab = draw(sizes)
    return torch.randint(0, vocab, (draw(st.integers(0, 9)),)), torch.randn(vocab, draw(sizes))


def norm_case(draw: Any) -> tuple[Any, ...]:
    width = draw(sizes)
    return torch.randn(draw(st.integers(0, 9)), width), torch.randn(width), 1e-5


def add_norm_case(draw: Any) -> tuple[Any, ...]:
    values, weight, eps = norm_case(draw)
    return values, torch.randn_like(values), weight, eps


def gated_case(draw: Any) -> tuple[Any, ...]:
    return (torch.randn(draw(st.integers(0, 9)), 2 * draw(sizes)),)


def cap_case(draw: Any) -> tuple[Any, ...]:
    return torch.randn(draw(st.integers(0, 9)), draw(sizes)) * 50, 30.0


def most_likely_case(draw: Any) -> tuple[Any, ...]:
    width = draw(sizes)
    return torch.randn(draw(st.integers(0, 9)), width), draw(st.integers(1, width))


def drawn_case(draw: Any) -> tuple[Any, ...]:
    num_rows, width = draw(st.integers(0, 9)), draw(sizes)
    rates = [torch.rand(num_rows, dtype=torch.float64) for _ in range(4)]
    temperature, top_p, min_p, numbers = rates[0] * 2 - 0.5, 1 - rates[1], rates[2] / 4, rates[3].clamp(1e-9, 1 - 1e-9)
    top_k = torch.randint(0, width + 1, (num_rows,))
    return torch.randn(num_rows, width) * 3, width, temperature.clamp(min=0), top_k, top_p, min_p, numbers


def rotary_case(draw: Any) -> tuple[Any, ...]:
    tokens, half, rest = draw(st.integers(0, 9)), draw(sizes), draw(st.integers(0, 4))
    size = 2 * half + rest
    query, key = torch.randn(tokens, draw(sizes) * size), torch.randn(tokens, draw(sizes) * size)
    return query, key, torch.randint(0, 12, (tokens,)), torch.randn(12, 2 * half), size


def blocks_case(draw: Any) -> tuple[int, torch.Tensor, str]:
    width, four, eight = 32 * draw(st.integers(1, 3)), draw(sizes), draw(sizes)
    parts = quantised_4_bits(torch.randn(four, width)), quantised_8_bits(torch.randn(eight, width))
    return width, torch.cat([part.rows.flatten() for part in parts]), f"Q4_1:{four}+Q8_0:{eight}"


def quantized_linear_case(draw: Any) -> tuple[Any, ...]:
    width, weight, layout = blocks_case(draw)
    return torch.randn(draw(st.integers(0, 9)), width), weight, None, layout


def quantized_embedding_case(draw: Any) -> tuple[Any, ...]:
    width, weight, layout = blocks_case(draw)
    return torch.randint(0, 2, (draw(st.integers(0, 9)),)), weight, layout, width, torch.bfloat16


CASES: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "linear": linear_case,
    "embedding": embedding_case,
    "rms_norm": norm_case,
    "add_rms_norm": add_norm_case,
    "rms_norm_plus_one": norm_case,
    "add_rms_norm_plus_one": add_norm_case,
    "silu_and_mul": gated_case,
    "gelu_tanh_and_mul": gated_case,
    "soft_cap": cap_case,
    "most_likely": most_likely_case,
    "drawn": drawn_case,
    "rotary_embedding": rotary_case,
    "quantized_linear": quantized_linear_case,
    "quantized_embedding": quantized_embedding_case,
}


def outputs(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def kernels(name: str, arguments: tuple[Any, ...]) -> list[Callable[..., Any]]:
    in_features = arguments[0].shape[-1] if name.endswith("linear") else 5
    shape = {"in_features": in_features, "out_features": 3}
    requests = [
        OpRequest(op=name, device_type="cpu", dtype="float32", batch_invariant=invariant, shape=shape)
        for invariant in (True, False)
    ]
    return [get_op(name).reference] + [TorchOps().kernel(r) for r in requests if TorchOps().supports(r) is None]


def test_every_op_has_a_case_here() -> None:
    assert set(CASES) == set(op_names())


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, derandomize=True, max_examples=30)
@given(data=st.data())
def test_fakes_have_the_shapes_and_dtypes_of_real_results(name: str, data: st.DataObject) -> None:
    arguments = CASES[name](data.draw)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = outputs(
            get_op(name).fake(*(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments))
        )
    for kernel in kernels(name, arguments):
        for fake, real in zip(fakes, outputs(kernel(*arguments)), strict=True):
            assert (fake.shape, fake.dtype) == (real.shape, real.dtype)
            assert not real.numel() or fake.stride() == real.stride()


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, derandomize=True, max_examples=20)
@given(data=st.data())
def test_results_never_alias_inputs_nor_each_other(name: str, data: st.DataObject) -> None:
    arguments = CASES[name](data.draw)
    given_storage = {a.untyped_storage().data_ptr() for a in arguments if isinstance(a, torch.Tensor) and a.numel()}
    for kernel in kernels(name, arguments):
        results = [r.untyped_storage().data_ptr() for r in outputs(kernel(*arguments)) if r.numel()]
        assert not given_storage & set(results)
        assert len(results) == len(set(results))


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, derandomize=True, max_examples=20)
@given(data=st.data())
def test_the_built_in_kernels_compute_what_the_reference_does(name: str, data: st.DataObject) -> None:
    arguments = CASES[name](data.draw)
    for kernel in kernels(name, arguments)[1:]:
        for expected, real in zip(
            outputs(get_op(name).reference(*arguments)), outputs(kernel(*arguments)), strict=True
        ):
            torch.testing.assert_close(real, expected, rtol=1e-5, atol=1e-5)


def test_a_norm_plus_one_rounds_only_its_result() -> None:
    values, weight = torch.randn(7, 33).bfloat16(), (torch.randn(33) * 0.01).bfloat16()
    exact = values.double() / (values.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + weight.double())
    normed = get_op("rms_norm_plus_one").reference(values, weight, 1e-6)
    assert ((normed.double() - exact).abs() <= exact.abs() * 2**-8).all()


def test_a_soft_cap_keeps_small_values_and_bounds_large_ones() -> None:
    capped = get_op("soft_cap").reference(torch.tensor([[0.01, -0.01, 30.0, 1e4, -1e4]]), 30.0)
    expected = torch.tensor([[0.01, -0.01, 22.8478, 30.0, -30.0]])
    torch.testing.assert_close(capped, expected, rtol=1e-4, atol=1e-6)
