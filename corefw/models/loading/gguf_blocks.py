"""Block-quantised tensors to float32, in numpy.

Products and sums are in the order of the format's reference, so results are equal to the bit. Shape letters: B blocks,
S sub-blocks of a K type's block, E elements.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from corefw.models.loading.gguf_types import TensorType

__all__ = ["DECODERS", "dequantise"]

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

# Elements worked on at once: float32 output and temporaries of a slice stay in the second-level cache.
_SLICE_ELEMENTS = 1 << 18
_MAX_THREADS = 8


def dequantise(raw: Bytes, kind: TensorType, out: Floats | None = None) -> Floats:
    """Decode whole blocks.

    Args:
        raw: bytes of any shape, whole blocks in order.
        kind: their type; one of ``DECODERS``.
        out: where to write, contiguous float32 of as many elements; made when absent.

    Returns:
        ``out``, flat.
    """
    blocks_BX = np.ascontiguousarray(raw).reshape(-1, kind.block_bytes)
    num_blocks = len(blocks_BX)
    if out is None:
        out = np.empty(num_blocks * kind.block_elements, np.float32)
    out_BE = out.reshape(num_blocks, kind.block_elements)
    decode = DECODERS[kind.name]
    step = max(1, _SLICE_ELEMENTS // kind.block_elements)

    def decode_slice(start: int) -> None:
        # A damaged scale may be NaN or infinite; that is the file's value, not worth a warning a slice.
        with np.errstate(all="ignore"):
            decode(blocks_BX[start : start + step], out_BE[start : start + step])

    starts = range(0, num_blocks, step)
    if len(starts) < 4:
        for start in starts:
            decode_slice(start)
    else:
        with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as pool:
            list(pool.map(decode_slice, starts))
    return out.reshape(-1)


def _fields(blocks_BX: Bytes, *fields: tuple[str, str, int]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """View rows of bytes as records."""
    layout = np.dtype([(name, form, (count,)) if count > 1 else (name, form) for name, form, count in fields])
    return blocks_BX.view(layout).reshape(-1)


def _column(values: npt.NDArray[np.float16]) -> Floats:
    return values.astype(np.float32)[:, None]


def _f32(blocks_BX: Bytes, out_BE: Floats) -> None:
    np.copyto(out_BE, blocks_BX.view("<f4"))


def _f16(blocks_BX: Bytes, out_BE: Floats) -> None:
    np.copyto(out_BE, blocks_BX.view("<f2"))


def _bf16(blocks_BX: Bytes, out_BE: Floats) -> None:
    # A bfloat16 is the upper half of a float32.
    np.left_shift(blocks_BX.view("<u2"), 16, out=out_BE.view(np.uint32), dtype=np.uint32)


def _nibbles(qs_BX: Bytes, out_BE: Floats) -> None:
    """Low halves of the bytes first, then the high halves."""
    half = qs_BX.shape[-1]
    out_BE[:, :half] = qs_BX & 15
    out_BE[:, half:] = qs_BX >> 4


def _five_bits(qh_BX: Bytes, qs_BX: Bytes, out_BE: Floats) -> None:
    """Nibbles, and for each element one upper bit out of a 32-bit mask."""
    upper_BE = np.unpackbits(qh_BX, axis=-1, bitorder="little") << 4
    out_BE[:, :16] = (qs_BX & 15) | upper_BE[:, :16]
    out_BE[:, 16:] = (qs_BX >> 4) | upper_BE[:, 16:]


def _q4_0(blocks_BX: Bytes, out_BE: Floats) -> None:
    block = _fields(blocks_BX, ("d", "<f2", 1), ("qs", "u1", 16))
    _nibbles(block["qs"], out_BE)
    out_BE -= 8
    out_BE *= _column(block["d"])


def _q4_1(blocks_BX: Bytes, out_BE: Floats) -> None:
    block = _fields(blocks_BX, ("d", "<f2", 1), ("m", "<f2", 1), ("qs", "u1", 16))
    _nibbles(block["qs"], out_BE)
    out_BE *= _column(block["d"])
    out_BE += _column(block["m"])


def _q5_0(blocks_BX: Bytes, out_BE: Floats) -> None:
    block = _fields(blocks_BX, ("d", "<f2", 1), ("qh", "u1", 4), ("qs", "u1", 16))
    _five_bits(block["qh"], block["qs"], out_BE)
    out_BE -= 16
    out_BE *= _column(block["d"])


def _q5_1(blocks_BX: Bytes, out_BE: Floats) -> None:
    block = _fields(blocks_BX, ("d", "<f2", 1), ("m", "<f2", 1), ("qh", "u1", 4), ("qs", "u1", 16))
    _five_bits(block["qh"], block["qs"], out_BE)
    out_BE *= _column(block["d"])
    out_BE += _column(block["m"])


def _q8_0(blocks_BX: Bytes, out_BE: Floats) -> None:
    block = _fields(blocks_BX, ("d", "<f2", 1), ("qs", "i1", 32))
    np.copyto(out_BE, block["qs"])
    out_BE *= _column(block["d"])


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
    out_BSE *= (_column(block["d"]) * scales_BS)[:, :, None]
    out_BSE -= (_column(block["dmin"]) * minimums_BS)[:, :, None]


def _q4_k(blocks_BX: Bytes, out_BE: Floats) -> None:
    block = _fields(blocks_BX, ("d", "<f2", 1), ("dmin", "<f2", 1), ("scales", "u1", 12), ("qs", "u1", 128))
    out_BSE = out_BE.reshape(-1, 8, 32)
    qs_BSE = block["qs"].reshape(-1, 4, 32)
    out_BSE[:, 0::2] = qs_BSE & 15
    out_BSE[:, 1::2] = qs_BSE >> 4
    _scale_sub_blocks(block, block["scales"], out_BSE)


def _q5_k(blocks_BX: Bytes, out_BE: Floats) -> None:
    block = _fields(
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


def _q6_k(blocks_BX: Bytes, out_BE: Floats) -> None:
    block = _fields(blocks_BX, ("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2", 1))
    # Each half of the block: 64 bytes of lower bits are elements 0-63 (low halves) and 64-127 (high halves); two bits
    # of byte e of the 32 upper ones belong to each of the elements e, e+32, e+64, e+96.
    low_BhX = block["ql"].reshape(-1, 2, 64)
    high_BhX = block["qh"].reshape(-1, 2, 32)
    shifts_41 = np.array([0, 2, 4, 6], np.uint8)[:, None]
    upper_BhE = ((high_BhX[:, :, None, :] >> shifts_41 & 3) << 4).reshape(-1, 2, 128)
    out_BhE = out_BE.reshape(-1, 2, 128)
    out_BhE[:, :, :64] = (low_BhX & 15) | upper_BhE[:, :, :64]
    out_BhE[:, :, 64:] = (low_BhX >> 4) | upper_BhE[:, :, 64:]
    out_BE -= 32
    scales_BS = _column(block["d"]) * block["scales"].astype(np.float32)
    out_BSE = out_BE.reshape(-1, 16, 16)
    out_BSE *= scales_BS[:, :, None]


DECODERS: dict[str, Callable[[Bytes, Floats], None]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
