"""Root-mean-square norm, alone or after a residual addition."""

from __future__ import annotations

import torch
from torch import nn

from corefw.models.layers.context import BuildContext
from corefw.models.layers.parameter import Parameter, whole

__all__ = ["RMSNorm"]


class RMSNorm(nn.Module):
    """x / rms(x) · weight."""

    def __init__(self, width: int, eps: float, build: BuildContext) -> None:
        super().__init__()
        self.weight = Parameter(whole(width), build)
        self._eps = eps
        self._norm = build.binder.bind("rms_norm", width=width)
        self._add_norm = build.binder.bind("add_rms_norm", width=width)

    def forward(self, input_TE: torch.Tensor, residual_TE: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the residual stream, if there is one yet.

        Returns:
            the norm of the sum, and the sum, which is the residual stream from here on.
        """
        if residual_TE is None:
            return self._norm(input_TE, self.weight, self._eps), input_TE
        normed, total = self._add_norm(input_TE, residual_TE, self.weight, self._eps)
        return normed, total
