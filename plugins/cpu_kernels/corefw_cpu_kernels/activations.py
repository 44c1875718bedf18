"""Gated activations and the soft cap in bfloat16; see ``csrc/kernels_activations.cpp``."""

from __future__ import annotations

import torch

from corefw_cpu_kernels.calls import Kernel
from corefw_cpu_kernels.rows import new_rows, rows_of

__all__ = ["gelu_tanh_and_mul", "silu_and_mul", "soft_cap"]

_silu = Kernel("silu_and_mul")
_gelu = Kernel("gelu_tanh_and_mul")
_soft_cap = Kernel("soft_cap")


def silu_and_mul(input: torch.Tensor) -> torch.Tensor:
    """input [T, 2I] = gate | up → silu(gate) · up, [T, I]."""
    return _gated(_silu, input)


def gelu_tanh_and_mul(input: torch.Tensor) -> torch.Tensor:
    """input [T, 2I] = gate | up → gelu(gate) · up, [T, I], gelu by its approximation with tanh."""
    return _gated(_gelu, input)


def soft_cap(input: torch.Tensor, cap: float) -> torch.Tensor:
    """input [T, O] → cap · tanh(input / cap)."""
    values = input.contiguous()
    out = new_rows(*input.shape)
    _soft_cap(out, values, values.numel(), float(cap))
    return out


def _gated(kernel: Kernel, input: torch.Tensor) -> torch.Tensor:
    rows = rows_of(input)
    width = rows.shape[1] // 2
    out = new_rows(*input.shape[:-1], width)
    kernel(out, rows, rows.shape[0], width, rows.stride(0))
    return out
