"""Block-quantised tensors to float32, in numpy.

Products and sums are in the order of the format's reference, so results are equal to the bit. Shape letters: B blocks,
E elements, X bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from corefw.models.loading.gguf_block_fields import Bytes, Floats, column, fields
from corefw.models.loading.gguf_k_blocks import q2_k, q3_k, q4_k, q5_k, q6_k
from corefw.models.loading.gguf_lookup_blocks import iq4_nl, iq4_xs, mxfp4, tq1_0, tq2_0
from corefw.models.loading.gguf_types import TensorType

__all__ = ["DECODERS", "dequantise"]

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
    block = fields(blocks_BX, ("d", "<f2", 1), ("qs", "u1", 16))
    _nibbles(block["qs"], out_BE)
    out_BE -= 8
    out_BE *= column(block["d"])


def _q4_1(blocks_BX: Bytes, out_BE: Floats) -> None:
    block = fields(blocks_BX, ("d", "<f2", 1), ("m", "<f2", 1), ("qs", "u1", 16))
    _nibbles(block["qs"], out_BE)
    out_BE *= column(block["d"])
    out_BE += column(block["m"])


def _q5_0(blocks_BX: Bytes, out_BE: Floats) -> None:
    block = fields(blocks_BX, ("d", "<f2", 1), ("qh", "u1", 4), ("qs", "u1", 16))
    _five_bits(block["qh"], block["qs"], out_BE)
    out_BE -= 16
    out_BE *= column(block["d"])


def _q5_1(blocks_BX: Bytes, out_BE: Floats) -> None:
    block = fields(blocks_BX, ("d", "<f2", 1), ("m", "<f2", 1), ("qh", "u1", 4), ("qs", "u1", 16))
    _five_bits(block["qh"], block["qs"], out_BE)
    out_BE *= column(block["d"])
    out_BE += column(block["m"])


def _q8_0(blocks_BX: Bytes, out_BE: Floats) -> None:
    block = fields(blocks_BX, ("d", "<f2", 1), ("qs", "i1", 32))
    np.copyto(out_BE, block["qs"])
    out_BE *= column(block["d"])


DECODERS: dict[str, Callable[[Bytes, Floats], None]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
    "IQ4_NL": iq4_nl,
    "IQ4_XS": iq4_xs,
    "MXFP4": mxfp4,
    "TQ1_0": tq1_0,
    "TQ2_0": tq2_0,
    "W8A8": _q8_0,  # of no file: see corefw.models.ops.block_layout
}
