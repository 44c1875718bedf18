"""Arrays as (dtype, shape, buffer), so that they cross a process border without pickling."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt

from corefw.errors import EngineError

__all__ = ["Array"]


class Array(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A dense row-major array.

    Attributes:
        dtype: numpy name of a fixed-size numeric type (``float32``, ``int64`` …).
        shape: extents, outermost first.
        data: the elements, little-endian, without padding.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def from_numpy(cls, array: npt.NDArray[np.generic]) -> Array:
        """Copy a numpy array (made contiguous first)."""
        return cls(array.dtype.name, array.shape, np.ascontiguousarray(array).tobytes())

    def to_numpy(self) -> npt.NDArray[np.generic]:
        """A read-only view of the buffer.

        Raises:
            EngineError: dtype, shape and buffer length disagree.
        """
        dtype = np.dtype(self.dtype)
        if math.prod(self.shape) * dtype.itemsize != len(self.data):
            raise EngineError(f"array of {self.dtype}{list(self.shape)} came with {len(self.data)} bytes")
        return np.frombuffer(self.data, dtype=dtype).reshape(self.shape)
