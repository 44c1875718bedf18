"""Buffers that are filled on the host and read on the device; made once, so that their addresses never change."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from corefw.runtime.model_runner.ragged_rows import RaggedRows

__all__ = ["HostBuffer", "TableBuffer"]

_NO_ROW = -1


class HostBuffer:
    """One-dimensional. On a CPU the device's tensor is the host's."""

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._host = torch.zeros(size, dtype=dtype)
        self._array: npt.NDArray[np.generic] = self._host.numpy()
        self._device = self._host if device.type == "cpu" else torch.zeros(size, dtype=dtype, device=device)
        # What lies behind the values that were written last, and the view of them.
        self._tail = 0
        self._view = self._device[:0]
        self._count = 0

    def upload(self, values: npt.NDArray[np.generic], *, tail: int = 0) -> torch.Tensor:
        """Write the values, and ``tail`` behind them; returns the device's view of the values alone."""
        count = len(values)
        # Behind what was written last the tail stands already, unless it was another one.
        end = len(self._array) if tail != self._tail else max(count, self._count)
        self._array[:count] = values
        self._array[count:end] = tail
        if self._device is not self._host:
            self._device[:end].copy_(self._host[:end])
        if count != self._count:
            self._view = self._device[:count]
        self._tail, self._count = tail, count
        return self._view

    def first(self, count: int) -> torch.Tensor:
        """The device's view of the first values: what was uploaded last, and the tail behind it."""
        return self._device[:count]


class TableBuffer:
    """The rows of a step, each at a place of its own however wide the others are, with zeros behind them.

    What stands at a place already isn't written again, so that a step costs what has changed since the one before.

    Args:
        num_rows: at most.
        width: of a row, at most.
        device: where it is read.
    """

    def __init__(self, num_rows: int, width: int, device: torch.device) -> None:
        self._host = torch.zeros((num_rows, width), dtype=torch.int32)
        self._array: npt.NDArray[np.int32] = self._host.numpy()
        self._device = self._host if device.type == "cpu" else torch.zeros_like(self._host, device=device)
        # By place: which row stands there, in which of its versions, how far, and how many of its first items were
        # taken out.
        self._sources = np.full(num_rows, _NO_ROW, dtype=np.intp)
        self._versions = np.zeros(num_rows, dtype=np.int64)
        self._lengths = np.zeros(num_rows, dtype=np.int64)
        self._dropped = np.zeros(num_rows, dtype=np.int64)
        self._num_used = 0
        self._table: RaggedRows | None = None

    def upload(
        self,
        rows: npt.NDArray[np.intp],
        table: RaggedRows,
        width: int,
        num_dropped: npt.NDArray[np.int64] | None = None,
    ) -> torch.Tensor:
        """Write these rows one after the other.

        Args:
            rows: of the table.
            table: where they are from.
            width: what the view is wide.
            num_dropped: for each row, of how many of its first items there are to be zeros instead.

        Returns:
            The device's view [R, width], whose rows lie as far apart as ever.
        """
        if table is not self._table:
            self.clear()
            self._table = table
        count, old_count = len(rows), self._num_used
        self._num_used = count
        changed = (self._sources[:count] != rows) | (self._versions[:count] != table.versions[rows])
        if num_dropped is not None:
            changed |= self._dropped[:count] != num_dropped
        places = np.flatnonzero(changed)
        if len(places):
            self._write(places, rows[places], table)
            if num_dropped is not None:
                self._drop(places, num_dropped[places])
        if old_count > count:
            self._array[count:old_count] = 0
            self._sources[count:old_count] = _NO_ROW
            self._lengths[count:old_count] = 0
            places = np.append(places, (count, old_count - 1))
        if self._device is not self._host and len(places):
            first, end = int(places[0]), int(places[-1]) + 1
            self._device[first:end].copy_(self._host[first:end])
        return self._device[:count, :width]

    def clear(self) -> None:
        """Zeros everywhere."""
        self._array[:] = 0
        self._sources[:] = _NO_ROW
        self._lengths[:] = 0
        self._num_used = 0
        if self._device is not self._host:
            self._device.copy_(self._host)

    def _write(self, places: npt.NDArray[np.intp], rows: npt.NDArray[np.intp], table: RaggedRows) -> None:
        lengths = np.minimum(table.lengths[rows], self._array.shape[1])
        width = int(max(lengths.max(), self._lengths[places].max()))
        values = table.values[rows, :width]
        self._array[places, : values.shape[1]] = values
        self._sources[places] = rows
        self._versions[places] = table.versions[rows]
        self._lengths[places] = lengths

    def _drop(self, places: npt.NDArray[np.intp], num_dropped: npt.NDArray[np.int64]) -> None:
        self._dropped[places] = num_dropped
        for place, count in zip(places.tolist(), num_dropped.tolist(), strict=True):
            self._array[place, :count] = 0

    def first(self, num_rows: int) -> torch.Tensor:
        """The device's view of the first rows in full width."""
        return self._device[:num_rows]
