"""Weights and inputs in eight bits with a scale for each row (``W8A8``); see ``csrc/kernels_int8.cpp``."""

from __future__ import annotations

from collections.abc import Callable

import torch

from corefw.models.ops.block_layout import W8A8, parse_layout
from corefw_cpu_kernels.calls import Kernel
from corefw_cpu_kernels.rows import new_rows, rows_of
from corefw_cpu_kernels.weight_memory import new_weight

__all__ = ["computes", "embedding_kernel", "linear_kernel", "pack"]

_LANES, _FILL, _TAIL_BYTES = 16, 64, 128

_linear = Kernel("int8_linear")
_pack = Kernel("pack_int8")
_embedding = Kernel("int8_embedding")


def computes(layout: str) -> bool:
    """Whether a layout is of these weights, as a whole."""
    return all(segment.type == W8A8 for segment in parse_layout(layout))


def pack(weight: torch.Tensor, layout: str, in_features: int) -> torch.Tensor:
    """Bytes of rows in blocks → bytes of panels."""
    num_outputs = _num_outputs(layout)
    width = -(-in_features // _FILL) * _FILL
    size = -(-num_outputs // _LANES) * (width * _LANES + _TAIL_BYTES)
    packed = new_weight(size, dtype=torch.uint8)
    _pack(packed, weight, num_outputs, in_features)
    return packed


def linear_kernel(layout: str, in_features: int) -> Callable[..., torch.Tensor]:
    """The kernel of ``quantized_linear`` for packed weights."""
    num_outputs = _num_outputs(layout)

    def quantized_linear(
        input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, layout: str
    ) -> torch.Tensor:
        del layout
        rows = rows_of(input)
        out = new_rows(*input.shape[:-1], num_outputs)
        _linear(out, rows, weight, bias, rows.shape[0], in_features, num_outputs, rows.stride(0), num_outputs)
        return out

    return quantized_linear


def embedding_kernel(layout: str) -> Callable[..., torch.Tensor]:
    """The kernel of ``quantized_embedding`` for packed weights."""
    num_ids = _num_outputs(layout)

    def quantized_embedding(
        ids: torch.Tensor, weight: torch.Tensor, layout: str, width: int, dtype: torch.dtype
    ) -> torch.Tensor:
        del layout
        wanted = ids.to(torch.int64).contiguous()
        out = new_rows(*ids.shape, width)
        _embedding(out, wanted, weight, wanted.numel(), width, num_ids)
        return out if dtype == out.dtype else out.to(dtype)

    return quantized_embedding


def _num_outputs(layout: str) -> int:
    return sum(segment.num_rows for segment in parse_layout(layout))
