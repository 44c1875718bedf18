"""Types whose bits are an index into fixed values (non-linear and 4-bit float types), and the ternary ones."""

from __future__ import annotations

import numpy as np

from corefw.models.loading.gguf_block_fields import Bytes, Floats, column, fields

__all__ = ["iq4_nl", "iq4_xs", "mxfp4", "tq1_0", "tq2_0"]

# The types' definitions: values that a normal distribution fills evenly, and twice those of a 4-bit float (E2M1).
_NON_LINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_FLOAT4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
_POWERS_OF_3 = np.array([1, 3, 9, 27, 81], np.uint8)


def iq4_nl(blocks_BX: Bytes, out_BE: Floats) -> None:
    """Four bits an element are an index; one scale for 32."""
    block = fields(blocks_BX, ("d", "<f2", 1), ("qs", "u1", 16))
    _look_up(_NON_LINEAR, block["qs"], out_BE)
    out_BE *= column(block["d"])


def iq4_xs(blocks_BX: Bytes, out_BE: Floats) -> None:
    """The same in blocks of 256, with a signed 6-bit scale for each 32."""
    block = fields(blocks_BX, ("d", "<f2", 1), ("high", "<u2", 1), ("low", "u1", 4), ("qs", "u1", 128))
    lower_BS = (block["low"][:, :, None] >> np.array([0, 4], np.uint8) & 15).reshape(-1, 8)
    upper_BS = block["high"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales_BS = (lower_BS | upper_BS << 4).astype(np.float32) - np.float32(32)
    out_BSE = out_BE.reshape(-1, 8, 32)
    _look_up(_NON_LINEAR, block["qs"].reshape(-1, 8, 16), out_BSE)
    out_BSE *= (column(block["d"]) * scales_BS)[:, :, None]


def mxfp4(blocks_BX: Bytes, out_BE: Floats) -> None:
    """A 4-bit float an element, and an exponent for each 32.

    Source: OCP Microscaling Formats 1.0. The table holds doubled values, so the exponent's bias is 128.
    """
    block = fields(blocks_BX, ("e", "u1", 1), ("qs", "u1", 16))
    _look_up(_FLOAT4, block["qs"], out_BE)
    out_BE *= np.ldexp(np.float32(1), block["e"].astype(np.int32) - 128)[:, None]


def tq1_0(blocks_BX: Bytes, out_BE: Floats) -> None:
    """Five ternary digits a byte (four in the last four bytes), as a fraction of 256; one scale for 256."""
    block = fields(blocks_BX, ("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2", 1))
    qs = block["qs"]
    _ternary(qs[:, :32], 5, out_BE[:, :160])
    _ternary(qs[:, 32:], 5, out_BE[:, 160:240])
    _ternary(block["qh"], 4, out_BE[:, 240:])
    out_BE *= column(block["d"])


def tq2_0(blocks_BX: Bytes, out_BE: Floats) -> None:
    """Two bits an element, minus one; one scale for 256."""
    block = fields(blocks_BX, ("qs", "u1", 64), ("d", "<f2", 1))
    shifts_41 = np.array([0, 2, 4, 6], np.uint8)[:, None]
    out_BE.reshape(-1, 2, 4, 32)[:] = block["qs"].reshape(-1, 2, 1, 32) >> shifts_41 & 3
    out_BE -= 1
    out_BE *= column(block["d"])


def _look_up(table: Floats, qs: Bytes, out: Floats) -> None:
    """Low halves of the bytes first, then the high halves."""
    half = qs.shape[-1]
    out[..., :half] = table[qs & 15]
    out[..., half:] = table[qs >> 4]


def _ternary(qs_BX: Bytes, num_digits: int, out_BE: Floats) -> None:
    """The first digits of all bytes, then the second ones: multiplying shifts the earlier digits out of the byte."""
    shifted_BDX = qs_BX[:, None, :] * _POWERS_OF_3[:num_digits, None]
    out_BE[:] = (shifted_BDX.astype(np.uint16) * 3 >> 8).reshape(len(qs_BX), -1)
    out_BE -= 1
