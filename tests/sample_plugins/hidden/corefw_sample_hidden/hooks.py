"""``extensions: {"hidden_states": {"layers": [1, 2]}}`` answers with the residual stream after these layers.

One entry a generated token: by layer, the stream at the position that the token was predicted from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from corefw.errors import RequestError
from corefw.interfaces.hooks.lifecycle import RequestExtension
from corefw.interfaces.hooks.model import ModelTaps
from corefw.sdk.plugins import hookimpl

if TYPE_CHECKING:
    import torch

    from corefw.interfaces.hooks.lifecycle import WorkerStep
    from corefw.sdk.config import EngineConfig


class LayersField(RequestExtension):
    """Checks what clients send."""

    def __init__(self, num_layers: int) -> None:
        self._num_layers = num_layers

    def check(self, data: Mapping[str, object]) -> None:
        """One field, a list of layers."""
        layers = data.get("layers")
        if set(data) != {"layers"} or not isinstance(layers, list):
            raise RequestError("hidden_states takes layers, a list of numbers", param="layers")
        if not all(isinstance(layer, int) and 0 <= layer < self._num_layers for layer in layers):
            raise RequestError(f"layers are numbers below {self._num_layers}", param="layers")


class HiddenStates(ModelTaps[None]):
    """Sends rows of the stream back to those who asked for them."""

    breaks: ClassVar[frozenset[str]] = frozenset({"full"})

    def __init__(self, num_layers: int) -> None:
        self.points = [f"layers.{index}.residual" for index in range(num_layers)]

    def show(self, step: WorkerStep[None], point: str, *tensors: torch.Tensor) -> None:
        """The last row of each request that gets a token."""
        (stream,) = tensors
        layer = point.split(".")[1]
        for row in step.rows:
            if row.extension is not None and row.logits_row is not None and int(layer) in row.extension["layers"]:
                step.answer(row, {layer: [stream[row.stop - 1].float().tolist()]})


@hookimpl
def corefw_request_extension(config: EngineConfig) -> RequestExtension:
    """Take ``layers``."""
    return LayersField(config.model_info.num_layers)


@hookimpl
def corefw_model_taps(config: EngineConfig) -> ModelTaps[None]:
    """Tap every layer."""
    return HiddenStates(config.model_info.num_layers)
