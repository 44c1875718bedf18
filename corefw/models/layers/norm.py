"""Root-mean-square norms, alone or after a residual addition."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from corefw.models.layers.context import BuildContext
from corefw.models.layers.parameter import Parameter, whole

__all__ = ["RMSNorm", "RMSNormPlusOne"]


class RMSNorm(nn.Module):
    """x / rms(x) · weight.

    Attributes:
        op: name of the norm's op; with ``add_`` before it, of that after an addition.
    """

    op: ClassVar[str] = "rms_norm"

    def __init__(self, width: int, eps: float, build: BuildContext) -> None:
        super().__init__()
        self.weight = Parameter(whole(width), build)
        self._width = width
        self._eps = eps
        self._norm = build.binder.bind(self.op, width=width)
        self._add_norm = build.binder.bind(f"add_{self.op}", width=width)

    def forward(self, input_TE: torch.Tensor, residual_TE: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the residual stream, if there is one yet.

        Returns:
            the norm of the sum, and the sum, which is the residual stream from here on.
        """
        if residual_TE is None:
            return self._norm(input_TE, self.weight, self._eps), input_TE
        normed, total = self._add_norm(input_TE, residual_TE, self.weight, self._eps)
        return normed, total

    def each_head(self, heads_TX: torch.Tensor) -> torch.Tensor:
        """The norm of every head of [T, heads·width] on its own."""
        normed: torch.Tensor = self._norm(heads_TX.reshape(-1, self._width), self.weight, self._eps)
        return normed.view(heads_TX.shape)


class RMSNormPlusOne(RMSNorm):
    """x / rms(x) · (1 + weight), rounded once: the weight is stored as its distance from one."""

    op: ClassVar[str] = "rms_norm_plus_one"
