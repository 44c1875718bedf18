"""Matrix products whose rows come out the same whatever stands in the other rows, and however many there are.

A BLAS picks its kernel, and with it the order of additions, by the shape of the product. So rows are multiplied in
tiles of a fixed number of rows, the last one filled up with zeros. Measured with MKL 2024.2 on AVX-512, one and two
threads, weights 576→{192, 576, 960, 1536, 3072, 49152}, 1536→576 and odd sizes down to 3→1: within a tile of 2 to 64
rows the bits of a row depend neither on its place nor on the other rows nor on alignment; one row alone (GEMV) differs;
tiles of up to 8 and of 16 and more rows differ from each other on some shapes. With 16 rows a single row costs little
more than with 8, and many rows half as much. Larger tiles are twice as fast again, but only allowed where they give the
same bits as the base tile: with several threads and with one the classes differ, so that is measured, not assumed.
"""

from __future__ import annotations

from functools import lru_cache

import torch

__all__ = ["choose_tiles", "matmul_rows"]

_BASES = (16, 8, 32, 4, 2, 1)
_LARGER = (256, 64)
_MAX_PROBE_PRODUCTS = 2**31  # larger tiles aren't worth measuring where one takes tens of milliseconds


def matmul_rows(input_TE: torch.Tensor, weight_OE: torch.Tensor, tiles: tuple[int, ...]) -> torch.Tensor:
    """input · weightᵀ in row tiles.

    Args:
        input_TE: [T, E] float32.
        weight_OE: [O, E] float32.
        tiles: from ``choose_tiles``, falling; the last is the base.
    """
    weight_EO = weight_OE.t()
    rows = input_TE.shape[0]
    if rows <= tiles[-1]:
        return torch.mm(_padded(input_TE, tiles[-1]), weight_EO)[:rows]
    out_TO = input_TE.new_empty((rows, weight_OE.shape[0]))
    start = 0
    for tile in tiles:
        while rows - start >= tile:
            torch.mm(input_TE[start : start + tile], weight_EO, out=out_TO[start : start + tile])
            start += tile
    if start < rows:
        out_TO[start:] = torch.mm(_padded(input_TE[start:], tiles[-1]), weight_EO)[: rows - start]
    return out_TO


def _padded(input_TE: torch.Tensor, tile: int) -> torch.Tensor:
    if input_TE.shape[0] == tile:
        return input_TE
    padded = input_TE.new_zeros((tile, input_TE.shape[1]))
    padded[: input_TE.shape[0]] = input_TE
    return padded


def choose_tiles(in_features: int, out_features: int) -> tuple[int, ...]:
    """Tile sizes for a weight of that shape, falling; the last is the base, whose bits the others share.

    Products of every candidate are compared bit for bit, so a BLAS that behaves differently gets another base, in the
    end single rows. Measured once per shape and number of threads, on which a BLAS's choice depends too; afterwards a
    call costs well under a microsecond.
    """
    return _measured_tiles(in_features, out_features, torch.get_num_threads())


@lru_cache(maxsize=512)
def _measured_tiles(in_features: int, out_features: int, num_threads: int) -> tuple[int, ...]:
    del num_threads  # part of the key
    noise = torch.rand(65_537, generator=torch.Generator().manual_seed(0)) - 0.5  # prime length: rows don't repeat
    weight = _fill(noise, out_features, in_features)
    base = next(rows for rows in _BASES if _rows_are_independent(noise, weight, rows))
    larger = [rows for rows in _LARGER if rows > base and rows * weight.numel() <= _MAX_PROBE_PRODUCTS]
    return (*(rows for rows in larger if _same_bits(noise, weight, rows, base)), base)


def _fill(noise: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    count = rows * columns
    return noise.repeat(-(-count // noise.numel()))[:count].view(rows, columns)


def _rows_are_independent(noise: torch.Tensor, weight_OE: torch.Tensor, rows: int) -> bool:
    mixed = _fill(noise, rows, weight_OE.shape[1]).clone()
    equal = mixed[:1].expand(rows, -1).contiguous()
    expected = torch.mm(equal, weight_OE.t())
    last = mixed.roll(-1, 0)  # the row in question comes last, among others
    alone = torch.zeros_like(mixed)
    alone[rows // 2] = mixed[0]
    return (
        bool((expected == expected[0]).all())
        and torch.equal(torch.mm(mixed, weight_OE.t())[0], expected[0])
        and torch.equal(torch.mm(last, weight_OE.t())[-1], expected[0])
        and torch.equal(torch.mm(alone, weight_OE.t())[rows // 2], expected[0])
    )


def _same_bits(noise: torch.Tensor, weight_OE: torch.Tensor, rows: int, base: int) -> bool:
    values = _fill(noise, rows, weight_OE.shape[1]).clone()
    return torch.equal(torch.mm(values, weight_OE.t()), matmul_rows(values, weight_OE, (base,)))
