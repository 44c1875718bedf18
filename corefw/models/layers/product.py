"""What every layer with one matrix product shares: the bound kernel, and a weight in the layout that it likes best."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from corefw.models.layers.context import BuildContext
    from corefw.models.layers.parameter import Parameter

__all__ = ["ProductLayer", "prepare_weights"]


class ProductLayer(nn.Module):
    """A layer around ``linear`` with its ``weight`` [out, in].

    Attributes:
        weight: a parameter; after ``prepare_weight`` whatever the kernel's provider made of it.
    """

    weight: Parameter | torch.Tensor

    def _bind(self, weight: Parameter, build: BuildContext) -> None:
        self.weight = weight
        out_features, in_features = weight.shape
        self._binder = build.binder
        self._linear = build.binder.bind("linear", in_features=in_features, out_features=out_features)

    def prepare_weight(self) -> None:
        """Let the kernel's provider lay the loaded weight out; the plain one is forgotten. Called once."""
        plain = self.weight.data
        out_features, in_features = plain.shape
        prepared = self._binder.prepare_weight("linear", plain, in_features=in_features, out_features=out_features)
        if prepared is not plain:
            del self._parameters["weight"]
            self.weight = prepared


def prepare_weights(model: nn.Module) -> None:
    """Prepare every product layer's weight but those that something else in the model uses as well (tied ones)."""
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    for module in model.modules():
        if isinstance(module, ProductLayer) and owners[id(module.weight)] == 1:
            module.prepare_weight()
