from __future__ import annotations

import pytest
import torch

from corefw.interfaces.op_provider import OpRequest
from corefw.models.layers.blocks import BlockTensor
from corefw.models.ops.block_layout import parse_layout
from corefw_cpu_kernels import blocks
from corefw_cpu_kernels.provider import CpuKernels

_INPUTS = 512
# Where float16 scales lie in a block, and between which values they are drawn.
_SCALES: dict[str, dict[int, tuple[float, float]]] = {
    "Q4_0": {0: (-0.01, 0.01)},
    "Q4_1": {0: (0, 0.01), 2: (-0.1, 0)},
    "Q5_0": {0: (-0.01, 0.01)},
    "Q5_1": {0: (0, 0.01), 2: (-0.1, 0)},
    "Q8_0": {0: (-0.01, 0.01)},
    "Q4_K": {0: (0, 0.0005), 2: (0, 0.0005)},
    "Q5_K": {0: (0, 0.0005), 2: (0, 0.0005)},
    "Q6_K": {208: (-0.0001, 0.0001)},
}


def random_blocks(name: str, num_rows: int, seed: int = 0) -> BlockTensor:
    """Any codes at all: a file may hold them."""
    noise = torch.Generator().manual_seed(seed)
    kind = parse_layout(name)[0].type
    shape = (num_rows, _INPUTS // kind.block_elements)
    raw = torch.randint(0, 256, (*shape, kind.block_bytes), dtype=torch.uint8, generator=noise)
    for at, (low, high) in _SCALES[name].items():
        scales = (torch.rand(shape, generator=noise) * (high - low) + low).half()
        raw[:, :, at : at + 2] = scales.view(torch.uint8).view(*shape, 2)
    return BlockTensor(raw.view(num_rows, -1), kind)


def product(parts: list[BlockTensor], rows: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    layout = "+".join(f"{part.type.name}:{part.shape[0]}" for part in parts)
    packed = blocks.pack(torch.cat([part.rows.flatten() for part in parts]), layout, _INPUTS)
    return blocks.linear_kernel(layout, _INPUTS)(rows, packed, bias, layout)


def test_every_type_has_a_case_here() -> None:
    assert set(_SCALES) == set(blocks.TYPES)


@pytest.mark.parametrize("name", blocks.TYPES)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 16, 37])
@pytest.mark.usefixtures("level")
def test_a_product_is_near_that_with_the_values_of_the_blocks(name: str, num_rows: int) -> None:
    weight = random_blocks(name, 40)
    rows = torch.randn(num_rows, _INPUTS, generator=torch.Generator().manual_seed(1)).bfloat16()
    wanted = rows.float() @ weight.dequantised().T
    found = product([weight], rows).float()
    # Inputs in eight bits are off by up to a 254th of the largest of 32, which adds up to about half a percent.
    assert (found - wanted).norm() / wanted.norm() < 0.015
    assert (found - wanted).abs().max() < 0.04 * wanted.abs().max()


@pytest.mark.parametrize("name", blocks.TYPES)
@pytest.mark.usefixtures("level")
def test_packing_loses_nothing(name: str) -> None:
    weight = random_blocks(name, 40)
    layout = f"{name}:40"
    packed = blocks.pack(weight.rows.flatten(), layout, _INPUTS)
    ids = torch.tensor([0, 17, 39, 16, 40, -1])
    found = blocks.embedding_kernel(layout)(ids, packed, layout, _INPUTS, torch.bfloat16)
    assert torch.equal(found[:4], weight.dequantised().bfloat16()[ids[:4]])
    assert not found[4:].any()  # ids that aren't there


@pytest.mark.usefixtures("level")
def test_rows_of_several_types_make_one_product() -> None:
    parts = [random_blocks("Q4_K", 24, 1), random_blocks("Q6_K", 8, 2), random_blocks("Q5_0", 40, 3)]
    bias = torch.randn(72).bfloat16()
    for num_rows in (1, 20):
        rows = torch.randn(num_rows, _INPUTS).bfloat16()
        apart = torch.cat([product([part], rows) for part in parts], dim=-1)
        assert torch.equal(product(parts, rows), apart)
        assert torch.allclose(product(parts, rows, bias).float(), apart.float() + bias.float(), atol=0.05, rtol=0.02)


@pytest.mark.usefixtures("level")
def test_few_rows_are_computed_each_on_its_own() -> None:
    weight = random_blocks("Q4_1", 48)
    rows = torch.randn(7, _INPUTS).bfloat16()
    together = product([weight], rows)
    assert torch.equal(together, torch.cat([product([weight], row) for row in rows.split(1)]))


@pytest.mark.usefixtures("level")
def test_a_row_of_zeros_gives_zeros_and_no_rows_give_none() -> None:
    weight = random_blocks("Q8_0", 16)
    assert not product([weight], torch.zeros(2, _INPUTS).bfloat16()).any()
    assert product([weight], torch.zeros(0, _INPUTS).bfloat16()).shape == (0, 16)


@pytest.mark.parametrize("name", blocks.TYPES)
@pytest.mark.usefixtures("level")
def test_inputs_next_to_nothing_give_nothing(name: str) -> None:
    weight = random_blocks(name, 16)
    rows = torch.full((2, _INPUTS), 2e-38).bfloat16()
    assert product([weight], rows).abs().max() < 1e-30


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 9, 31, 200])
@pytest.mark.usefixtures("level")
def test_an_input_that_is_no_finite_number_shows_in_its_row_alone(wrong: float, place: int) -> None:
    weight = random_blocks("Q4_1", 16)
    rows = torch.ones(3, _INPUTS).bfloat16()
    rows[1, place] = wrong
    assert product([weight], rows).isfinite().all(dim=-1).tolist() == [True, False, True]
    assert not product([weight], rows)[1].isfinite().any()


def test_packed_weights_take_little_more_than_the_file() -> None:
    for name in blocks.TYPES:
        weight = random_blocks(name, 64)
        packed = blocks.pack(weight.rows.flatten(), f"{name}:64", _INPUTS)
        assert packed.numel() <= weight.rows.numel() * 1.04


def test_a_type_without_kernels_is_named() -> None:
    request = OpRequest(
        op="quantized_linear", device_type="cpu", dtype="bfloat16", batch_invariant=False, shape={}, layout="Q2_K"
    )
    assert CpuKernels().supports(request) == "no kernel for the block type Q2_K"
