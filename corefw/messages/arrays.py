"""Arrays as (dtype, shape, buffer), so that they cross a process border without pickling."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from corefw.errors import EngineError

__all__ = ["Array"]


class Array:
    """A dense row-major array; a value, never changed after construction.

    Not a struct on purpose: the codec gets to see it (see ``codec``) and sends its buffer apart from the message.

    Attributes:
        dtype: numpy name of a fixed-size numeric type (``float32``, ``int64`` …).
        shape: extents, outermost first.
        data: the elements, little-endian, without padding; read-only.
    """

    __slots__ = ("data", "dtype", "shape")

    def __init__(self, dtype: str, shape: tuple[int, ...], data: bytes | memoryview) -> None:
        self.dtype = dtype
        self.shape = shape
        self.data = data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        return (self.dtype, self.shape) == (other.dtype, other.shape) and bool(self.data == other.data)

    def __hash__(self) -> int:
        return hash((self.dtype, self.shape, bytes(self.data)))

    def __repr__(self) -> str:
        return f"Array({self.dtype}{list(self.shape)})"

    @classmethod
    def from_numpy(cls, array: npt.NDArray[np.generic]) -> Array:
        """Copy a numpy array (made contiguous first)."""
        return cls(array.dtype.name, array.shape, np.ascontiguousarray(array).tobytes())

    def rows(self, start: int, stop: int) -> memoryview:
        """The bytes of a part along the outermost extent; a view."""
        row_bytes = len(self.data) // self.shape[0]
        return memoryview(self.data).cast("B")[start * row_bytes : stop * row_bytes]

    def to_numpy(self) -> npt.NDArray[np.generic]:
        """A read-only view of the buffer.

        Raises:
            EngineError: dtype, shape and buffer length disagree.
        """
        dtype = np.dtype(self.dtype)
        if math.prod(self.shape) * dtype.itemsize != len(self.data):
            raise EngineError(f"array of {self.dtype}{list(self.shape)} came with {len(self.data)} bytes")
        return np.frombuffer(self.data, dtype=dtype).reshape(self.shape)
