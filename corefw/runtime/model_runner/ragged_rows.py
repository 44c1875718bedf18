"""Rows of different lengths in one array that is allocated ahead and grows when a row needs it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["RaggedRows"]

_FIRST_CAPACITY = 256


class RaggedRows:
    """Integers in rows; zeros lie beyond a row's end.

    Attributes:
        values: int32 [rows, capacity].
        lengths: int64 [rows].
        versions: int64 [rows]; another number whenever a row's items have changed.
    """

    def __init__(self, num_rows: int) -> None:
        self.values = np.zeros((num_rows, _FIRST_CAPACITY), dtype=np.int32)
        self.lengths = np.zeros(num_rows, dtype=np.int64)
        self.versions = np.zeros(num_rows, dtype=np.int64)

    def extend(self, row: int, items: Sequence[int]) -> None:
        """Append to one row."""
        start = int(self.lengths[row])
        end = start + len(items)
        self._reserve(end)
        self.values[row, start:end] = items
        self.lengths[row] = end
        self.versions[row] += 1

    def append(self, rows: npt.NDArray[np.intp], items: npt.NDArray[np.int64]) -> None:
        """Append one item to each of some different rows."""
        if len(rows):
            ends = self.lengths[rows]
            self._reserve(int(ends.max()) + 1)
            self.values[rows, ends] = items
            self.lengths[rows] = ends + 1
            self.versions[rows] += 1

    def clear(self, row: int) -> None:
        """Empty a row."""
        self.values[row, : self.lengths[row]] = 0
        self.lengths[row] = 0
        self.versions[row] += 1

    def move(self, source: int, target: int) -> None:
        """Put one row in the place of another and empty the first."""
        length = self.lengths[source]
        self.clear(target)
        self.values[target, :length] = self.values[source, :length]
        self.lengths[target] = length
        self.clear(source)

    def _reserve(self, length: int) -> None:
        num_rows, capacity = self.values.shape
        if length <= capacity:
            return
        grown = np.zeros((num_rows, max(length, 2 * capacity)), dtype=np.int32)
        grown[:, :capacity] = self.values
        self.values = grown
