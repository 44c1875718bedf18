"""Torch functions whose bits depend on a value's place or on the number of rows, replaced by ones where they don't.

Models call ``F.linear``, ``F.silu`` and their like in the middle of their code. Torch's sigmoid, silu and gelu take
another exp in the tail of a vectorised loop, so a value's bits depend on its place; exp, tanh and erf don't, and sums,
products and quotients round exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

from corefw_models_transformers.linear import LinearOf

__all__ = ["FixedOrder"]


class FixedOrder(TorchFunctionMode):
    """While it is entered, results don't depend on the rest of the batch. May be entered many times.

    Args:
        linear_of: kernels for products with weights.
    """

    def __init__(self, linear_of: LinearOf) -> None:
        super().__init__()
        self._linear_of = linear_of

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        if func is F.linear:
            return self._linear(*args, **(kwargs or {}))
        return _REPLACED.get(func, func)(*args, **(kwargs or {}))

    def _linear(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        out_features, in_features = weight.shape
        kernel = self._linear_of(in_features, out_features)
        # The kernel was measured for weights that lie in memory row by row.
        return kernel(input.reshape(-1, in_features), weight.contiguous(), bias).view(*input.shape[:-1], out_features)


def _sigmoid(input: torch.Tensor) -> torch.Tensor:
    return 1.0 / (torch.exp(-input) + 1.0)


def _silu(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    del inplace
    return input / (torch.exp(-input) + 1.0)


def _gelu(input: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    if approximate == "tanh":
        inner = (input + input * input * input * 0.044715) * math.sqrt(2 / math.pi)
        return (torch.tanh(inner) + 1.0) * input * 0.5
    return (torch.erf(input * math.sqrt(0.5)) + 1.0) * input * 0.5


_REPLACED: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.sigmoid: _sigmoid,
    torch.Tensor.sigmoid: _sigmoid,
    F.sigmoid: _sigmoid,
    F.silu: _silu,
    F.gelu: _gelu,
}
