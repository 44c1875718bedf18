"""Plain weights into block types, by rounding to nearest. Shapes: O rows, G groups of a row, E elements of a group."""

from __future__ import annotations

import torch

from corefw.models.layers.blocks import BlockTensor
from corefw.models.loading.gguf_types import TensorType
from corefw.models.ops.block_layout import parse_layout

__all__ = ["quantised_4_bits", "quantised_8_bits"]

_BLOCK = 32
_Q8_0, _Q4_1 = (parse_layout(name)[0].type for name in ("Q8_0", "Q4_1"))


def quantised_8_bits(weight_OI: torch.Tensor, group: int | None = None) -> BlockTensor:
    """Symmetric, -127 to 127 times a float16 scale, one for each ``group`` elements of a row (None: for the row).

    Args:
        weight_OI: its rows are a multiple of 32 long.
        group: a multiple of 32 that divides a row.
    """
    grouped_OGE = _grouped(weight_OI, group)
    scale_OG1 = _half(grouped_OGE.abs().amax(-1, keepdim=True) / 127)
    codes_OGE = torch.where(scale_OG1 > 0, grouped_OGE / scale_OG1, 0).round_().clamp_(-127, 127)
    codes = codes_OGE.to(torch.int8).view(torch.uint8).reshape(len(weight_OI), -1, _BLOCK)
    return _blocks(len(weight_OI), [_repeated(scale_OG1, codes.shape[1]), codes], _Q8_0)


def quantised_4_bits(weight_OI: torch.Tensor, group: int = 32, *, symmetric: bool = False) -> BlockTensor:
    """0 to 15 times a float16 scale, plus a float16 least value, one of each for ``group`` elements of a row.

    Args:
        weight_OI: its rows are a multiple of 32 long.
        group: a multiple of 32 that divides a row.
        symmetric: the least value is -8 times the scale; else it is that of the group.
    """
    grouped_OGE = _grouped(weight_OI, group)
    if symmetric:
        scale_OG1 = _half(grouped_OGE.abs().amax(-1, keepdim=True) / 7)
        least_OG1 = scale_OG1 * -8
    else:
        least_OG1 = _half(grouped_OGE.amin(-1, keepdim=True))
        scale_OG1 = _half((grouped_OGE.amax(-1, keepdim=True) - least_OG1).clamp_min(0) / 15)
    codes_OGE = torch.where(scale_OG1 > 0, (grouped_OGE - least_OG1) / scale_OG1, 0).round_().clamp_(0, 15)
    codes = codes_OGE.to(torch.uint8).reshape(len(weight_OI), -1, _BLOCK)
    nibbles = codes[..., : _BLOCK // 2] | codes[..., _BLOCK // 2 :] << 4
    num_blocks = codes.shape[1]
    return _blocks(len(weight_OI), [_repeated(scale_OG1, num_blocks), _repeated(least_OG1, num_blocks), nibbles], _Q4_1)


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


def _blocks(num_rows: int, fields: list[torch.Tensor], kind: TensorType) -> BlockTensor:

    return BlockTensor(torch.cat(fields, dim=-1).reshape(num_rows, -1), kind)
