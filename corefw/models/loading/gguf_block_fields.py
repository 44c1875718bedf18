"""Rows of bytes as records, for the decoders of block types."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Bytes", "Floats", "column", "fields"]

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def fields(blocks_BX: Bytes, *layout: tuple[str, str, int]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """View rows of bytes as records."""
    record = np.dtype([(name, form, (count,)) if count > 1 else (name, form) for name, form, count in layout])
    return blocks_BX.view(record).reshape(-1)


def column(values: npt.NDArray[np.float16]) -> Floats:
    """One number a block, to be multiplied with its elements."""
    return values.astype(np.float32)[:, None]
