"""Weights in the block types of GGUF files; see ``csrc/block_types.h`` and ``csrc/kernels_blocks.cpp``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from corefw.models.ops.block_layout import Segment, parse_layout
from corefw_cpu_kernels.calls import Kernel
from corefw_cpu_kernels.rows import new_rows, rows_of
from corefw_cpu_kernels.weight_memory import new_weight

__all__ = ["TYPES", "embedding_kernel", "linear_kernel", "pack", "why_not"]

# Numbers of block types in GGUF files: those there are kernels for.
TYPES = {"Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14}

_LANES = 16

_linear = Kernel("blocks_linear")
_pack = Kernel("pack_blocks")
_embedding = Kernel("blocks_embedding")
_panel_bytes = Kernel("panel_bytes")


def why_not(layout: str) -> str | None:
    """None where there are kernels for all block types of a layout."""
    unknown = sorted({s.type.name for s in parse_layout(layout)} - set(TYPES))
    return f"no kernel for the block type {', '.join(unknown)}" if unknown else None


def pack(weight: torch.Tensor, layout: str, in_features: int) -> torch.Tensor:
    """Bytes of rows in blocks → bytes of panels, segment after segment; nothing is lost on the way."""
    segments = parse_layout(layout)
    packed = new_weight(sum(_size(segment, in_features) for segment in segments), dtype=torch.uint8)
    start = read = 0
    for segment in segments:
        row_bytes = in_features // segment.type.block_elements * segment.type.block_bytes
        rows = weight[read : read + segment.num_rows * row_bytes]
        _pack(packed[start:], rows, segment.num_rows, in_features, row_bytes, TYPES[segment.type.name])
        read += segment.num_rows * row_bytes
        start += _size(segment, in_features)
    return packed


def linear_kernel(layout: str, in_features: int) -> Callable[..., torch.Tensor]:
    """The kernel of ``quantized_linear`` for weights of one layout, packed."""
    segments = _described(layout, in_features)
    num_outputs = int(segments[:, 1].sum())

    def quantized_linear(
        input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, layout: str
    ) -> torch.Tensor:
        del layout
        rows = rows_of(input)
        out = new_rows(*input.shape[:-1], num_outputs)
        _linear(
            out,
            rows,
            weight,
            bias,
            segments,
            rows.shape[0],
            in_features,
            num_outputs,
            len(segments),
            rows.stride(0),
            num_outputs,
        )
        return out

    return quantized_linear


def embedding_kernel(layout: str) -> Callable[..., torch.Tensor]:
    """The kernel of ``quantized_embedding`` for weights of one type, packed."""
    (segment,) = parse_layout(layout)
    code = TYPES[segment.type.name]

    def quantized_embedding(
        ids: torch.Tensor, weight: torch.Tensor, layout: str, width: int, dtype: torch.dtype
    ) -> torch.Tensor:
        del layout
        wanted = ids.to(torch.int64).contiguous()
        out = new_rows(*ids.shape, width)
        _embedding(out, wanted, weight, wanted.numel(), width, segment.num_rows, code)
        return out if dtype == out.dtype else out.to(dtype)

    return quantized_embedding


def _described(layout: str, in_features: int) -> torch.Tensor:
    """For each segment its type, its rows and its first byte."""
    described, start = [], 0
    for segment in parse_layout(layout):
        described.append([TYPES[segment.type.name], segment.num_rows, start])
        start += _size(segment, in_features)
    return torch.tensor(described, dtype=torch.int64)


def _size(segment: Segment, in_features: int) -> int:
    return -(-segment.num_rows // _LANES) * _panel_size(TYPES[segment.type.name], in_features)


@cache
def _panel_size(code: int, in_features: int) -> int:
    size = torch.zeros(1, dtype=torch.int64)
    _panel_bytes(size, in_features, code)
    return int(size)
