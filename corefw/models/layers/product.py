"""What layers with one large weight share: the bound kernel, and the weight in the layout that it likes best."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from corefw.interfaces.quantization import QuantizableLayer
from corefw.models.layers.packed_parameter import PackedParameter, PackedWeight
from corefw.models.layers.parameter import whole_shape

if TYPE_CHECKING:
    from corefw.models.layers.context import BuildContext
    from corefw.models.layers.parameter import Parameter

__all__ = ["ProductLayer", "WeightLayer", "name_weights", "prepare_weights", "quantizable_layers"]


class WeightLayer(nn.Module):
    """A layer with a ``weight`` [out, in] that a kernel's provider may lay out.

    Attributes:
        kind: see ``QuantizableLayer``.
        weight: a parameter; after ``prepare_weight`` whatever the kernel's provider made of it.
    """

    kind: ClassVar[str] = "linear"

    weight: Parameter | torch.Tensor
    _layout: str | None = None  # of a weight in blocks

    def prepare_weight(self) -> None:
        """Let the kernel's provider lay the loaded weight out. Called once."""
        raise NotImplementedError

    @property
    def layout(self) -> str | None:
        """Of a prepared weight in blocks; None of a plain one."""
        return self._layout

    def adopt_weight(self, prepared: torch.Tensor, layout: str | None) -> None:
        """Take, instead of a loaded weight, what ``prepare_weight`` made of it in an earlier start."""
        self._compute_with(layout)
        self._replace_weight(prepared)

    def _compute_with(self, layout: str | None) -> None:
        """Bind the kernel for a weight in blocks of that layout, or for a plain one."""
        raise NotImplementedError

    def _replace_weight(self, prepared: torch.Tensor) -> None:
        self._parameters.pop("weight", None)
        self.weight = prepared


class ProductLayer(WeightLayer):
    """A layer around ``linear`` or, with a weight in blocks, ``quantized_linear``."""

    def _bind(self, weight: Parameter, build: BuildContext) -> None:
        self.weight = weight
        self._binder = build.binder
        out_features, in_features = whole_shape(weight.pieces)
        self._shape: dict[str, Any] = {"in_features": in_features, "out_features": out_features}
        if not isinstance(weight, PackedParameter):  # else that is known when it is loaded
            self._linear = build.binder.bind("linear", **self._shape)

    def prepare_weight(self) -> None:
        """Let the kernel's provider lay the loaded weight out. Called once.

        The plain one is forgotten here; where the embedding uses it as well and can't read the prepared one, it stays
        there, and memory holds both: the output head is the largest product of a small model, and what it costs is paid
        in every step.
        """
        weight = self.weight
        settled = weight.settled() if isinstance(weight, PackedParameter) else weight.data
        if isinstance(settled, PackedWeight):
            self._compute_with(settled.layout)
            self._replace_weight(settled.prepare("quantized_linear", self._binder, self._shape))
            return
        self._compute_with(None)
        prepared = self._binder.prepare_weight("linear", settled, **self._shape)
        if prepared is not settled or isinstance(weight, PackedParameter):
            self._replace_weight(prepared)

    def _compute_with(self, layout: str | None) -> None:
        self._layout = layout
        if layout is None:
            self._linear = self._binder.bind("linear", **self._shape)
            return
        kernel = self._binder.bind("quantized_linear", layout=layout, **self._shape)
        self._linear = partial(kernel, layout=layout)


def name_weights(model: nn.Module) -> None:
    """Tell every weight that may be held in blocks whose it is."""
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, PackedParameter) and not weight.layer_name:
            weight.layer_name = name


def quantizable_layers(model: nn.Module) -> tuple[QuantizableLayer, ...]:
    """The layers whose weight may be held in blocks, once they have names."""
    packed: Mapping[str, tuple[str, str]] = getattr(model, "packed", {})
    found: dict[int, QuantizableLayer] = {}
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if not isinstance(module, WeightLayer) or not isinstance(weight, PackedParameter):
            continue
        first = found.get(id(weight))
        found[id(weight)] = QuantizableLayer(
            name=weight.layer_name,
            kind=module.kind,
            in_features=next(iter(weight.pieces.values())).shape[1],
            names=_names(name, weight, packed) if first is None else [[*first.names[0], name, f"model.{name}"]],
        )
    return tuple(found.values())


def _names(name: str, weight: PackedParameter, packed: Mapping[str, tuple[str, str]]) -> list[list[str]]:
    """A layer's own name and a checkpoint's, for each of the checkpoint's that it holds."""
    own = [name, f"model.{name}"]
    above, _, last = name.rpartition(".")
    parts = [theirs for theirs, (ours, shard_id) in packed.items() if ours == last and shard_id in weight.pieces]
    return [[*own, f"{above}.{part}", f"model.{above}.{part}"] for part in parts] or [own]


def prepare_weights(model: nn.Module) -> None:
    """Prepare the weight of every product layer, and of every embedding in blocks, in a model."""
    for module in model.modules():
        if isinstance(module, WeightLayer):
            module.prepare_weight()
