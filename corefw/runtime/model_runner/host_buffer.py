"""A buffer that is filled on the host and read on the device; made once, so that its address never changes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["HostBuffer"]


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
