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
        """Let the kernel's provider lay the loaded weight out. Called once.

        The plain one is forgotten here; where the embedding uses it as well, it stays there, and memory holds both: the
        output head is the largest product of a small model, and what it costs is paid in every step.
        """
        plain = self.weight.data
        out_features, in_features = plain.shape
        prepared = self._binder.prepare_weight("linear", plain, in_features=in_features, out_features=out_features)
        if prepared is not plain:
            del self._parameters["weight"]
            self.weight = prepared


def prepare_weights(model: nn.Module) -> None:
    """Prepare the weight of every product layer in a model."""
    for module in model.modules():
        if isinstance(module, ProductLayer):
            module.prepare_weight()
