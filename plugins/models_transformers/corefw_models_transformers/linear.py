"""Linear layers of a transformers model, computed by the op that the core binds.

Shapes: E input width, O output width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

__all__ = ["BoundLinear", "Linear", "LinearOf", "Prepare", "prepare_linears", "replace_linears"]

Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""input [T, E], weight [O, E], bias [O] → [T, O]."""

LinearOf = Callable[[int, int], Linear]
"""The kernel for an input and an output width."""

Prepare = Callable[[torch.Tensor], torch.Tensor]
"""A loaded weight [O, E] as the kernel likes it best."""


class BoundLinear(nn.Module):
    """Stands where ``nn.Linear`` stood, with its parameters.

    Attributes:
        weight: a parameter; after ``prepare`` whatever the kernel's provider made of it.
    """

    weight: nn.Parameter | torch.Tensor

    def __init__(self, weight_OE: nn.Parameter, bias_O: nn.Parameter | None, linear_of: LinearOf) -> None:
        super().__init__()
        self.weight = weight_OE
        self.bias = bias_O
        self.out_features, self.in_features = weight_OE.shape
        self._linear = linear_of(self.in_features, self.out_features)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[…, E] → […, O]."""
        rows = input.reshape(-1, self.in_features)
        return self._linear(rows, self.weight, self.bias).view(*input.shape[:-1], self.out_features)

    def prepare(self, prepare: Prepare) -> None:
        """Lay the loaded weight out; the plain one is forgotten. Called once."""
        plain = self.weight.data
        prepared = prepare(plain)
        if prepared is not plain:
            del self._parameters["weight"]
            self.weight = prepared


def prepare_linears(model: nn.Module, prepare: Prepare, *, plain: Collection[str]) -> None:
    """Prepare the weight of every layer but those that another module shares (tied ones), or that are to stay plain.

    Args:
        model: weights loaded.
        prepare: of the kernels' provider.
        plain: names of layers whose weights are read by more than the layer.
    """
    owners = Counter(id(parameter) for module in model.modules() for parameter in module.parameters(recurse=False))
    for name, module in model.named_modules():
        if isinstance(module, BoundLinear) and owners[id(module.weight)] == 1 and name not in plain:
            module.prepare(prepare)


def replace_linears(model: nn.Module, linear_of: LinearOf) -> None:
    """Replace every ``nn.Linear`` and ``Conv1D``; subclasses stay, since they compute something else."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            replacement = _replacement(child, linear_of)
            if replacement is not None:
                setattr(parent, name, replacement)


def _replacement(module: Any, linear_of: LinearOf) -> nn.Module | None:
    if type(module) is nn.Linear:
        weight: Any = module.weight
        return BoundLinear(weight, module.bias, linear_of)
    if type(module) is Conv1D:
        weight_OE = nn.Parameter(module.weight.detach().t().contiguous(), requires_grad=False)
        return BoundLinear(weight_OE, module.bias, linear_of)
    return None
