from __future__ import annotations

import pytest
import torch
from torch import nn

from corefw.models.taps import UnknownTapPoint, install_taps


class Layer(nn.Module):
    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return hidden, residual


def test_rows_that_an_editor_leaves_alone_go_on_bit_for_bit() -> None:
    layer = Layer()
    taps = install_taps(frozenset({"layers.0.residual"}), [layer], [nn.Identity()], nn.Identity())

    def edit(stream: torch.Tensor) -> torch.Tensor:
        changed = stream.clone()
        changed[1] += 1
        return changed

    taps["layers.0.residual"].observers.append(edit)
    generator = torch.Generator().manual_seed(0)
    hidden, residual = (torch.randn(3, 64, generator=generator).to(torch.bfloat16) for _ in range(2))
    new_hidden, new_residual = layer(hidden, residual * 7)
    for row in (0, 2):
        assert torch.equal(new_hidden[row], hidden[row])
        assert torch.equal(new_residual[row], residual[row] * 7)
    torch.testing.assert_close(new_hidden[1] + new_residual[1], hidden[1] + residual[1] * 7 + 1, rtol=0.02, atol=0.1)


def test_an_unknown_point_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownTapPoint, match=r"'layer.0.residual'; nearest: layers.0.residual") as caught:
        install_taps(frozenset({"layer.0.residual"}), [Layer()], [nn.Identity()], nn.Identity())
    assert caught.value.point == "layer.0.residual"
