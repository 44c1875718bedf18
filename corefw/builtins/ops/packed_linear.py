"""bfloat16 products with weights in oneDNN's own blocked layout, so that no call has to bring them into it first.

Measured on the matrices of a 135M model (2 cores with AMX): a third less time than ``F.linear`` at 1 to 32 rows, a
quarter less at 512.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812

__all__ = ["can_pack", "pack", "packed_linear"]


def can_pack() -> bool:
    """Whether this machine's oneDNN computes in bfloat16 by itself."""
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(weight: torch.Tensor) -> torch.Tensor:
    """[out, in] → the same in oneDNN's layout; nothing but ``packed_linear`` can read it."""
    with torch.inference_mode():
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return packed


def packed_linear() -> Callable[..., torch.Tensor]:
    """The kernel of ``linear`` for plain and packed weights; only where ``can_pack``."""
    pointwise = torch.ops.mkldnn._linear_pointwise.default

    def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if not weight.is_mkldnn:
            return F.linear(input, weight, bias)
        out: torch.Tensor = pointwise(input, weight, bias, "none", [], "")
        return out

    return linear
