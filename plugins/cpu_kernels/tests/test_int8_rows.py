"""Products in eight bits on both sides, against torch's arithmetic of the same codes."""

from __future__ import annotations

import pytest
import torch

from corefw.interfaces.op_provider import OpRequest
from corefw.models.layers.block_quantizers import quantised_8_bits_both
from corefw.models.layers.blocks import BlockTensor
from corefw.models.ops import definitions
from corefw_cpu_kernels import int8_rows
from corefw_cpu_kernels.provider import CpuKernels

_INPUTS = 352  # not a multiple of 64


def held(num_rows: int, inputs: int = _INPUTS) -> tuple[BlockTensor, str, torch.Tensor]:
    weight = quantised_8_bits_both(torch.randn(num_rows, inputs, generator=torch.Generator().manual_seed(0)))
    layout = f"W8A8:{num_rows}"
    return weight, layout, int8_rows.pack(weight.rows.flatten(), layout, inputs)


def some_rows(count: int, inputs: int = _INPUTS) -> torch.Tensor:
    return torch.randn(count, inputs, generator=torch.Generator().manual_seed(1)).bfloat16()


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 16, 33, 70])
@pytest.mark.usefixtures("level")
def test_a_product_is_that_of_the_rounded_inputs_and_the_values_of_the_weight(num_rows: int) -> None:
    weight, layout, packed = held(40)
    rows, bias = some_rows(num_rows), torch.randn(40).bfloat16()
    found = int8_rows.linear_kernel(layout, _INPUTS)(rows, packed, bias, layout).float()
    rounded = definitions.rounded_inputs(rows.float(), layout)
    wanted = rounded @ weight.dequantised().T + bias.float()
    assert (found - wanted).norm() / wanted.norm() < 0.004  # of rounding the result, and codes on a border
    plain = rows.float() @ weight.dequantised().T + bias.float()
    assert (found - plain).norm() / plain.norm() < 0.015


@pytest.mark.usefixtures("level")
def test_a_row_comes_out_alike_among_any_others() -> None:
    _, layout, packed = held(48)
    kernel = int8_rows.linear_kernel(layout, _INPUTS)
    rows = some_rows(37)
    together = kernel(rows, packed, None, layout)
    for index in (0, 16, 36):
        assert torch.equal(kernel(rows[index : index + 1], packed, None, layout)[0], together[index])


@pytest.mark.usefixtures("level")
def test_zeros_stay_zeros_and_what_is_no_number_stays_none() -> None:
    _, layout, packed = held(16)
    rows = some_rows(4)
    rows[1] = 0
    rows[2, 5] = float("nan")
    rows[3, 300] = float("inf")
    out = int8_rows.linear_kernel(layout, _INPUTS)(rows, packed, None, layout)
    assert out[0].isfinite().all()
    assert not out[1].any()
    assert out[2:].isnan().all()


@pytest.mark.usefixtures("level")
def test_an_embedding_gives_the_values_of_the_weight() -> None:
    weight, layout, packed = held(40)
    ids = torch.tensor([0, 39, 17])
    found = int8_rows.embedding_kernel(layout)(ids, packed, layout, _INPUTS, torch.bfloat16)
    assert torch.equal(found, weight.dequantised()[ids].bfloat16())


def test_other_blocks_beside_them_are_refused() -> None:
    request = OpRequest(
        op="quantized_linear",
        device_type="cpu",
        dtype="bfloat16",
        batch_invariant=False,
        shape={},
        layout="W8A8:16+Q8_0:16",
    )
    assert "W8A8" in str(CpuKernels().supports(request))
