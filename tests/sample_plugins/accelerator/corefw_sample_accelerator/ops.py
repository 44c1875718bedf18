"""Kernels for the chip, which only it can compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from corefw.errors import PluginUnavailable
from corefw.interfaces.op_provider import OpProvider, OpRequest

if TYPE_CHECKING:
    import torch


class BigChipOps(OpProvider):
    """Large matrix products."""

    name = "bigchip"
    rank = 100

    def supports(self, request: OpRequest) -> str | None:
        """Not on other devices, and not the small ops."""
        if request.device_type != "bigchip":
            return f"made for a BigChip, not for {request.device_type}"
        return None if request.op == "linear" else "only matrix products"

    def kernel(self, request: OpRequest) -> Callable[..., torch.Tensor]:
        """Needs the hardware."""
        raise PluginUnavailable("no BigChip is plugged in")
