"""How tensors are handed to kernels: rows whose elements lie side by side."""

from __future__ import annotations

import torch

__all__ = ["new_rows", "rows_of"]


def rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """As [rows, width] with elements of a row side by side; a copy only where it isn't so."""
    if tensor.dim() != 2:
        tensor = tensor.reshape(-1, tensor.shape[-1])
    return tensor if tensor.stride(1) == 1 else tensor.contiguous()


def new_rows(*shape: int) -> torch.Tensor:
    """Memory for a result."""
    return torch.empty(shape, dtype=torch.bfloat16)
