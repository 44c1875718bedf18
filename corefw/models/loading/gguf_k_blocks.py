"""The K types: blocks of 256 elements, in sub-blocks with scales of their own.

Shape letters: B blocks, S sub-blocks of a block, E elements, X bytes, h halves of a block.
"""

from __future__ import annotations

import numpy as np

from corefw.models.loading.gguf_block_fields import Bytes, Floats, column, fields

__all__ = ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]

_TWO_BIT_SHIFTS_41 = np.array([0, 2, 4, 6], np.uint8)[:, None]


def q2_k(blocks_BX: Bytes, out_BE: Floats) -> None:
    """Two bits an element; a 4-bit scale and a 4-bit minimum for each 16 elements."""
    block = fields(blocks_BX, ("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2", 1), ("dmin", "<f2", 1))
    # Each 32 bytes hold 128 elements: the lowest two bits the first 32, and so on.
    out_BE.reshape(-1, 2, 4, 32)[:] = block["qs"].reshape(-1, 2, 1, 32) >> _TWO_BIT_SHIFTS_41 & 3
    out_BSE = out_BE.reshape(-1, 16, 16)
    out_BSE *= (column(block["d"]) * (block["scales"] & 15).astype(np.float32))[:, :, None]
    out_BSE -= (column(block["dmin"]) * (block["scales"] >> 4).astype(np.float32))[:, :, None]


def q3_k(blocks_BX: Bytes, out_BE: Floats) -> None:
    """Three bits an element, the upper one inverted and apart; a signed 6-bit scale for each 16 elements."""
    block = fields(blocks_BX, ("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2", 1))
    out_B24E = out_BE.reshape(-1, 2, 4, 32)
    out_B24E[:] = block["qs"].reshape(-1, 2, 1, 32) >> _TWO_BIT_SHIFTS_41 & 3
    # Bit g of byte e of the mask belongs to element e of the g-th 32 elements; where it is clear, 4 goes off.
    shifts_G1 = np.arange(8, dtype=np.uint8)[:, None]
    clear_BGE = ~(block["hmask"][:, None, :] >> shifts_G1) & 1
    out_BE -= (clear_BGE << 2).reshape(out_BE.shape)
    out_BSE = out_BE.reshape(-1, 16, 16)
    out_BSE *= (column(block["d"]) * _signed_scales(block["scales"]))[:, :, None]


def _signed_scales(scales_BX: Bytes) -> Floats:
    """Sixteen 6-bit scales out of 12 bytes, minus 32.

    Bytes 0-7 hold the lower four bits of scales 0-7 (low half) and 8-15 (high half); two bits at a time of bytes 8-11
    are the upper ones of four scales.
    """
    lower_BS = np.concatenate([scales_BX[:, :8] & 15, scales_BX[:, :8] >> 4], axis=-1)
    upper_B44 = scales_BX[:, None, 8:] >> _TWO_BIT_SHIFTS_41 & 3
    scales_BS = lower_BS | upper_B44.reshape(-1, 16) << 4
    signed_BS: Floats = scales_BS.astype(np.float32) - np.float32(32)
    return signed_BS


def _k_scales(scales_BX: Bytes) -> tuple[Floats, Floats]:
    """Eight 6-bit scales and eight 6-bit minimums out of 12 bytes.

    Bytes 0-3 hold scales 0-3, bytes 4-7 minimums 0-3, each with two upper bits of number 4-7; bytes 8-11 hold the lower
    four bits of scales (low half) and minimums (high half) 4-7.
    """
    first, second, third = scales_BX[:, 0:4], scales_BX[:, 4:8], scales_BX[:, 8:12]
    scales_BS = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=-1)
    minimums_BS = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=-1)
    return scales_BS.astype(np.float32), minimums_BS.astype(np.float32)


def _scale_sub_blocks(block: np.ndarray[tuple[int], np.dtype[np.void]], scales_BX: Bytes, out_BSE: Floats) -> None:
    scales_BS, minimums_BS = _k_scales(scales_BX)
    out_BSE *= (column(block["d"]) * scales_BS)[:, :, None]
    out_BSE -= (column(block["dmin"]) * minimums_BS)[:, :, None]


def q4_k(blocks_BX: Bytes, out_BE: Floats) -> None:
    """Four bits an element; a 6-bit scale and a 6-bit minimum for each 32 elements."""
    block = fields(blocks_BX, ("d", "<f2", 1), ("dmin", "<f2", 1), ("scales", "u1", 12), ("qs", "u1", 128))
    out_BSE = out_BE.reshape(-1, 8, 32)
    qs_BSE = block["qs"].reshape(-1, 4, 32)
    out_BSE[:, 0::2] = qs_BSE & 15
    out_BSE[:, 1::2] = qs_BSE >> 4
    _scale_sub_blocks(block, block["scales"], out_BSE)


def q5_k(blocks_BX: Bytes, out_BE: Floats) -> None:
    """As Q4_K, with a fifth bit apart."""
    block = fields(
        blocks_BX, ("d", "<f2", 1), ("dmin", "<f2", 1), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)
    )
    out_BSE = out_BE.reshape(-1, 8, 32)
    # Bit s of byte e of qh belongs to element e of sub-block s.
    shifts_S1 = np.arange(8, dtype=np.uint8)[:, None]
    upper_BSE = (block["qh"][:, None, :] >> shifts_S1 & 1) << 4
    qs_BSE = block["qs"].reshape(-1, 4, 32)
    out_BSE[:, 0::2] = (qs_BSE & 15) | upper_BSE[:, 0::2]
    out_BSE[:, 1::2] = (qs_BSE >> 4) | upper_BSE[:, 1::2]
    _scale_sub_blocks(block, block["scales"], out_BSE)


def q6_k(blocks_BX: Bytes, out_BE: Floats) -> None:
    """Six bits an element, the upper two apart; a signed 8-bit scale for each 16 elements."""
    block = fields(blocks_BX, ("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2", 1))
    # Each half of the block: 64 bytes of lower bits are elements 0-63 (low halves) and 64-127 (high halves); two bits
    # of byte e of the 32 upper ones belong to each of the elements e, e+32, e+64, e+96.
    low_BhX = block["ql"].reshape(-1, 2, 64)
    high_BhX = block["qh"].reshape(-1, 2, 32)
    upper_BhE = ((high_BhX[:, :, None, :] >> _TWO_BIT_SHIFTS_41 & 3) << 4).reshape(-1, 2, 128)
    out_BhE = out_BE.reshape(-1, 2, 128)
    out_BhE[:, :, :64] = (low_BhX & 15) | upper_BhE[:, :, :64]
    out_BhE[:, :, 64:] = (low_BhX >> 4) | upper_BhE[:, :, 64:]
    out_BE -= 32
    scales_BS = column(block["d"]) * block["scales"].astype(np.float32)
    out_BSE = out_BE.reshape(-1, 16, 16)
    out_BSE *= scales_BS[:, :, None]
