"""Plain weights into block types. Shapes: O rows, G groups of a row, E elements of a group."""

from __future__ import annotations

from collections.abc import Callable

import torch

from corefw.models.layers.blocks import BlockTensor
from corefw.models.loading.gguf_types import TensorType
from corefw.models.ops.block_layout import W8A8, parse_layout

__all__ = ["quantised_4_bits", "quantised_8_bits", "quantised_8_bits_both"]

_BLOCK = 32
_SLICE_ELEMENTS = 1 << 19  # worked on at once: what is made on the way stays small, and in caches
_Q8_0, _Q4_1 = (parse_layout(name)[0].type for name in ("Q8_0", "Q4_1"))


def quantised_8_bits(weight_OI: torch.Tensor, group: int | None = None) -> BlockTensor:
    """Symmetric, -127 to 127 times a float16 scale, one for each ``group`` elements of a row (None: for the row).

    Args:
        weight_OI: its rows are a multiple of 32 long.
        group: a multiple of 32 that divides a row.
    """
    return _in_slices(weight_OI, _Q8_0, lambda part_OI: _eight_bits(_grouped(part_OI, group)))


def quantised_8_bits_both(weight_OI: torch.Tensor) -> BlockTensor:
    """As ``quantised_8_bits`` with a scale for each row; products round their inputs as well."""
    return BlockTensor(quantised_8_bits(weight_OI).rows, W8A8)


def quantised_4_bits(weight_OI: torch.Tensor, group: int = 32, *, symmetric: bool = False) -> BlockTensor:
    """0 to 15 times a float16 scale, plus a float16 least value, one of each for ``group`` elements of a row.

    Args:
        weight_OI: its rows are a multiple of 32 long.
        group: a multiple of 32 that divides a row.
        symmetric: the least value is -8 times the scale; else it is that of the group.
    """
    return _in_slices(weight_OI, _Q4_1, lambda part_OI: _four_bits(_grouped(part_OI, group), symmetric=symmetric))


def _in_slices(
    weight_OI: torch.Tensor, kind: TensorType, fields_of: Callable[[torch.Tensor], list[torch.Tensor]]
) -> BlockTensor:
    num_rows, width = weight_OI.shape
    rows = torch.empty(num_rows, width // _BLOCK * kind.block_bytes, dtype=torch.uint8)
    step = max(1, _SLICE_ELEMENTS // max(1, width))
    for start in range(0, num_rows, step):
        part_OI = weight_OI[start : start + step]
        torch.cat(fields_of(part_OI), dim=-1, out=rows[start : start + step].view(len(part_OI), -1, kind.block_bytes))
    return BlockTensor(rows, kind)


def _eight_bits(grouped_OGE: torch.Tensor) -> list[torch.Tensor]:
    scale_OG1 = _half(grouped_OGE.abs().amax(-1, keepdim=True) / 127)
    codes_OGE = torch.where(scale_OG1 > 0, grouped_OGE / scale_OG1, 0).round_().clamp_(-127, 127)
    codes = codes_OGE.to(torch.int8).view(torch.uint8).reshape(len(grouped_OGE), -1, _BLOCK)
    return [_repeated(scale_OG1, codes.shape[1]), codes]


def _four_bits(grouped_OGE: torch.Tensor, *, symmetric: bool) -> list[torch.Tensor]:
    if symmetric:
        scale_OG1 = _half(grouped_OGE.abs().amax(-1, keepdim=True) / 7)
        least_OG1 = scale_OG1 * -8
    else:
        least_OG1 = _half(grouped_OGE.amin(-1, keepdim=True))
        scale_OG1 = _half((grouped_OGE.amax(-1, keepdim=True) - least_OG1).clamp_min(0) / 15)
    codes_OGE = torch.where(scale_OG1 > 0, (grouped_OGE - least_OG1) / scale_OG1, 0).round_().clamp_(0, 15)
    codes = codes_OGE.to(torch.uint8).reshape(len(grouped_OGE), -1, _BLOCK)
    nibbles = codes[..., : _BLOCK // 2] | codes[..., _BLOCK // 2 :] << 4
    num_blocks = codes.shape[1]
    return [_repeated(scale_OG1, num_blocks), _repeated(least_OG1, num_blocks), nibbles]


def _grouped(weight_OI: torch.Tensor, group: int | None) -> torch.Tensor:
    grouped_OGE: torch.Tensor = weight_OI.float().unflatten(-1, (-1, group or weight_OI.shape[-1]))
    return grouped_OGE


def _half(values: torch.Tensor) -> torch.Tensor:
    """As they are stored, so that codes are made for the stored ones."""
    return values.half().float()


def _repeated(values_OG1: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """One for each block, as bytes."""
    each: torch.Tensor = values_OG1.half().repeat_interleave(num_blocks // values_OG1.shape[1], dim=1)
    return each.view(torch.uint8)
