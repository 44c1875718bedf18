"""Plain weights into block types: how far values are off. Shapes: O rows, I inputs."""

from __future__ import annotations

import pytest
import torch

from corefw.models.layers.block_quantizers import quantised_4_bits, quantised_8_bits, quantised_8_bits_both


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def range_of_groups(weight_OI: torch.Tensor) -> torch.Tensor:
    groups: torch.Tensor = weight_OI.unflatten(-1, (-1, 32))
    ranges: torch.Tensor = groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)
    return ranges.expand_as(groups).reshape(weight_OI.shape)


def test_eight_bits_are_off_by_at_most_half_a_step_of_the_row() -> None:
    weight_OI = noise(40, 96) * torch.logspace(-3, 2, 40).unsqueeze(1)
    off_OI = (quantised_8_bits(weight_OI).dequantised() - weight_OI).abs()
    step_O1 = weight_OI.abs().amax(1, keepdim=True) / 127
    assert (off_OI <= step_O1 * 0.57).all()  # the scale is a float16
    assert torch.equal(quantised_8_bits_both(weight_OI).dequantised(), quantised_8_bits(weight_OI).dequantised())


def test_four_bits_have_less_error_than_rounding_within_the_range_and_are_never_far_off() -> None:
    weight_OI = noise(64, 256)
    off_OI = quantised_4_bits(weight_OI).dequantised() - weight_OI
    step_OI = range_of_groups(weight_OI) / 15
    least_OI = weight_OI.unflatten(-1, (-1, 32)).amin(-1, keepdim=True).expand(-1, -1, 32).reshape(weight_OI.shape)
    rounded_OI = ((weight_OI - least_OI) / step_OI).round() * step_OI + least_OI
    assert off_OI.square().sum() < 0.93 * (rounded_OI - weight_OI).square().sum()
    assert (off_OI.abs() <= 1.5 * step_OI).all()


def test_values_on_a_grid_of_sixteen_stay_as_they_are() -> None:
    codes_OI = torch.randint(0, 16, (8, 64), generator=torch.Generator().manual_seed(0)).float()
    codes_OI[:, ::32], codes_OI[:, 1::32] = 0, 15
    weight_OI = codes_OI * 0.25 - 1.5
    assert torch.equal(quantised_4_bits(weight_OI).dequantised(), weight_OI)


@pytest.mark.parametrize("quantise", [quantised_4_bits, quantised_8_bits])
def test_rows_of_one_value_and_of_zeros_stay_as_they_are(quantise: object) -> None:
    assert callable(quantise)
    weight_OI = torch.zeros(2, 64)
    weight_OI[1] = 0.5
    torch.testing.assert_close(quantise(weight_OI).dequantised(), weight_OI, atol=2e-4, rtol=0)


def test_slices_make_no_difference() -> None:
    weight_OI = noise(3, 1 << 18)
    whole = quantised_4_bits(weight_OI).rows
    assert torch.equal(whole, torch.cat([quantised_4_bits(row.unsqueeze(0)).rows for row in weight_OI]))
