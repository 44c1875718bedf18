"""Products with packed weights in bfloat16; see ``csrc/kernels_linear.cpp``."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from corefw_cpu_kernels.calls import Kernel
from corefw_cpu_kernels.rows import new_rows, rows_of
from corefw_cpu_kernels.weight_memory import new_weight

__all__ = ["can_embed", "is_packed", "linear", "pack"]

_PANEL, _BLOCK = 16, 32

_linear = Kernel("linear")
_pack = Kernel("pack_weight")


def pack(weight: torch.Tensor) -> torch.Tensor:
    """[O, E] → panels [O/16, E/32, 16, 32], outputs and inputs filled up with zeros."""
    rows = rows_of(weight.detach())
    num_outputs, num_inputs = rows.shape
    panels, blocks = -(-num_outputs // _PANEL), -(-num_inputs // _BLOCK)
    packed = new_weight(panels, blocks, _PANEL, _BLOCK, dtype=torch.bfloat16)
    _pack(packed, rows, num_outputs, num_inputs, rows.stride(0))
    return packed


def is_packed(weight: torch.Tensor) -> bool:
    """Whether a weight comes from ``pack``."""
    return weight.dim() == 4


def can_embed(num_inputs: int) -> bool:
    """Whether rows can be looked up in a packed weight of that width: else its width can't be told from its shape."""
    return num_inputs % _BLOCK == 0


def linear(num_outputs: int, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """input [T, E], packed weight of so many outputs O, bias [O] → [T, O]; a plain weight goes to torch."""
    if not is_packed(weight):
        return F.linear(input, weight, bias)
    rows = rows_of(input)
    num_rows, num_inputs = rows.shape
    out = new_rows(*input.shape[:-1], num_outputs)
    _linear(out, rows, weight, bias, num_rows, num_inputs, num_outputs, rows.stride(0), num_outputs)
    return out
