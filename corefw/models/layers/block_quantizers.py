"""Plain weights into block types. Shapes: O rows, I elements of a row, G groups of a row, E elements of a group."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from corefw.models.layers.blocks import BlockTensor
from corefw.models.loading.gguf_types import TensorType
from corefw.models.ops.block_layout import W8A8, parse_layout

__all__ = ["quantised_4_bits", "quantised_8_bits", "quantised_8_bits_both"]

_BLOCK = 32
_MAX_CODE = 15
_FITS = 2
_SLICE_ELEMENTS = 1 << 15  # worked on at once: what is made on the way stays in caches, and torch starts no threads
_MAX_THREADS = 8
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
        symmetric: the least value is -8 times the scale; else both are such that the sum of squared errors is small.
    """
    return _in_slices(weight_OI, _Q4_1, lambda part_OI: _four_bits(_grouped(part_OI, group), symmetric=symmetric))


def _in_slices(
    weight_OI: torch.Tensor, kind: TensorType, fields_of: Callable[[torch.Tensor], list[torch.Tensor]]
) -> BlockTensor:
    num_rows, width = weight_OI.shape
    rows = torch.empty(num_rows, width // _BLOCK * kind.block_bytes, dtype=torch.uint8)
    step = max(1, _SLICE_ELEMENTS // max(1, width))

    def fill(start: int) -> None:
        part_OI = weight_OI[start : start + step]
        torch.cat(fields_of(part_OI), dim=-1, out=rows[start : start + step].view(len(part_OI), -1, kind.block_bytes))

    with ThreadPoolExecutor(min(_MAX_THREADS, torch.get_num_threads())) as pool:
        list(pool.map(fill, range(0, num_rows, step)))
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
        codes_OGE = _codes(grouped_OGE, scale_OG1, least_OG1)
    else:
        scale_OG1, least_OG1, codes_OGE = _fitted(grouped_OGE)
    codes = codes_OGE.to(torch.uint8).reshape(len(grouped_OGE), -1, _BLOCK)
    nibbles = codes[..., : _BLOCK // 2] | codes[..., _BLOCK // 2 :] << 4
    num_blocks = codes.shape[1]
    return [_repeated(scale_OG1, num_blocks), _repeated(least_OG1, num_blocks), nibbles]


def _fitted(grouped_OGE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scale, least value and codes of each group: from its range, then by least squares for the codes so far.

    Fits go on from one another; of each group the best is taken. N: all groups, side by side for vectors.
    """
    values_EN = grouped_OGE.flatten(0, 1).t().contiguous()
    least_N = values_EN.amin(0)
    scale_N = (values_EN.amax(0) - least_N) / _MAX_CODE
    best: tuple[torch.Tensor, ...] = ()
    for _ in range(_FITS + 1):
        least_N, scale_N = _half(least_N), _half(scale_N)
        codes_EN = _codes(values_EN, scale_N, least_N)
        error_N = torch.addcmul(least_N, codes_EN, scale_N).sub_(values_EN).square_().sum(0)
        new = (error_N, scale_N, least_N, codes_EN)
        better = error_N < best[0] if best else None
        best = new if better is None else tuple(torch.where(better, *pair) for pair in zip(new, best, strict=True))
        scale_N, least_N = _line(codes_EN, values_EN, scale_N, least_N)
    _, scale_N, least_N, codes_EN = best
    shape = (*grouped_OGE.shape[:-1], 1)
    return scale_N.view(shape), least_N.view(shape), codes_EN.t().reshape(grouped_OGE.shape)


def _line(
    codes_EN: torch.Tensor, values_EN: torch.Tensor, scale_N: torch.Tensor, least_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Slope and start of the line that is off by least from codes to values; where codes are all alike, as before."""
    code_N, value_N = codes_EN.mean(0), values_EN.mean(0)
    spread_EN = codes_EN - code_N
    square_N = spread_EN.square().sum(0)
    slope_N = (spread_EN * values_EN).sum(0) / square_N
    known_N = square_N > 0
    return torch.where(known_N, slope_N, scale_N), torch.where(known_N, value_N - slope_N * code_N, least_N)


def _codes(values: torch.Tensor, scale: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
    inverse = torch.where(scale > 0, 1 / scale, 0)
    return (values - least).mul_(inverse).round_().clamp_(0, _MAX_CODE)


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
