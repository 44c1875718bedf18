"""Root-mean-square norms of bfloat16 rows; see ``csrc/kernels_norms.cpp``."""

from __future__ import annotations

import torch

from corefw_cpu_kernels.calls import Kernel
from corefw_cpu_kernels.rows import new_rows, rows_of

__all__ = ["add_rms_norm", "add_rms_norm_plus_one", "rms_norm", "rms_norm_plus_one"]

_rms_norm = Kernel("rms_norm")
_add_rms_norm = Kernel("add_rms_norm")


def rms_norm(input: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """input [T, E] → input / rms(input) · weight; in float32, rounded once."""
    return _norm(input, weight, eps, 0.0)


def rms_norm_plus_one(input: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """input [T, E] → input / rms(input) · (1 + weight); in float32, rounded once."""
    return _norm(input, weight, eps, 1.0)


def add_rms_norm(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of input + residual, and that sum."""
    return _add_norm(input, residual, weight, eps, 0.0)


def add_rms_norm_plus_one(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of input + residual, and that sum."""
    return _add_norm(input, residual, weight, eps, 1.0)


def _norm(input: torch.Tensor, weight: torch.Tensor, eps: float, plus: float) -> torch.Tensor:
    rows = rows_of(input)
    num_rows, width = rows.shape
    out = new_rows(*input.shape)
    _rms_norm(out, rows, weight, num_rows, width, rows.stride(0), eps, plus)
    return out


def _add_norm(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, plus: float
) -> tuple[torch.Tensor, torch.Tensor]:
    left, right = rows_of(input), rows_of(residual)
    num_rows, width = left.shape
    out, total = new_rows(*input.shape), new_rows(*input.shape)
    _add_rms_norm(out, total, left, right, weight, num_rows, width, left.stride(0), right.stride(0), eps, plus)
    return out, total
