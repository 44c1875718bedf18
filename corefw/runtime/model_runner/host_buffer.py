"""Buffers that are filled on the host and read on the device; made once, so that their addresses never change."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["HostBuffer", "TableBuffer"]


class HostBuffer:
    """One-dimensional. On a CPU the device's tensor is the host's."""

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._host = torch.zeros(size, dtype=dtype)
        self._array: npt.NDArray[np.generic] = self._host.numpy()
        self._device = self._host if device.type == "cpu" else torch.zeros(size, dtype=dtype, device=device)

    def upload(self, values: npt.NDArray[np.generic], *, tail: int = 0) -> torch.Tensor:
        """Write the values, and ``tail`` behind them; returns the device's view of the values alone."""
        count = len(values)
        self._array[:count] = values
        self._array[count:] = tail
        if self._device is not self._host:
            self._device.copy_(self._host)
        return self._device[:count]

    def first(self, count: int) -> torch.Tensor:
        """The device's view of the first values: what was uploaded last, and the tail behind it."""
        return self._device[:count]


class TableBuffer:
    """Rows of integers, each at a place of its own however wide the others are; zeros are behind what was uploaded.

    Args:
        num_rows: at most.
        width: of a row, at most.
        device: where it is read.
    """

    def __init__(self, num_rows: int, width: int, device: torch.device) -> None:
        self._host = torch.zeros((num_rows, width), dtype=torch.int32)
        self._array: npt.NDArray[np.int32] = self._host.numpy()
        self._device = self._host if device.type == "cpu" else torch.zeros_like(self._host, device=device)
        self._used = (0, 0)

    def upload(self, values: npt.NDArray[np.int32]) -> torch.Tensor:
        """Write [R, M]; returns the device's view of it, whose rows lie as far apart as ever."""
        rows, width = values.shape
        old_rows, old_width = self._used
        self._array[:rows, :width] = values
        self._array[:rows, width:old_width] = 0
        self._array[rows:old_rows, :old_width] = 0
        self._used = rows, width
        if self._device is not self._host:
            changed = max(rows, old_rows)
            self._device[:changed].copy_(self._host[:changed])
        return self._device[:rows, :width]

    def first(self, num_rows: int) -> torch.Tensor:
        """The device's view of the first rows in full width."""
        return self._device[:num_rows]
