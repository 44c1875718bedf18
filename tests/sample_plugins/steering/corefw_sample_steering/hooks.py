"""``extensions: {"steering": {"vector": [0.5, …], "scale": 2}}`` adds the vector to the stream after one layer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from corefw.errors import RequestError
from corefw.interfaces.hooks.kv import HashKeys
from corefw.interfaces.hooks.lifecycle import RequestExtension
from corefw.interfaces.hooks.model import ModelTaps
from corefw.sdk.plugins import hookimpl

if TYPE_CHECKING:
    import torch

    from corefw.interfaces.hooks.lifecycle import WorkerRequest, WorkerStep
    from corefw.interfaces.kv_connector import KVRequest
    from corefw.sdk.config import EngineConfig

LAYER = 1


class VectorField(RequestExtension):
    """Checks what clients send."""

    def __init__(self, width: int) -> None:
        self._width = width

    def check(self, data: Mapping[str, object]) -> None:
        """A vector of the model's width, and a factor."""
        vector, scale = data.get("vector"), data.get("scale", 1.0)
        if set(data) - {"vector", "scale"} or not isinstance(scale, int | float):
            raise RequestError("steering takes vector and scale")
        if not isinstance(vector, list) or len(vector) != self._width:
            raise RequestError(f"vector takes {self._width} numbers", param="vector")
        if not all(isinstance(value, int | float) for value in vector):
            raise RequestError("vector takes numbers", param="vector")


class Steering(ModelTaps["torch.Tensor"]):
    """Adds vectors to rows."""

    points = (f"layers.{LAYER}.residual",)

    def make_context(self, request: WorkerRequest) -> torch.Tensor | None:
        """The request's vector, scaled."""
        import torch

        if request.extension is None:
            return None
        return torch.tensor(request.extension["vector"]) * request.extension.get("scale", 1.0)

    def show(self, step: WorkerStep[torch.Tensor], point: str, *tensors: torch.Tensor) -> torch.Tensor | None:
        """A new stream, when anybody wants to be steered."""
        (stream,) = tensors
        steered = [row for row in step.rows if row.context is not None]
        if not steered:
            return None
        changed = stream.clone()
        for row in steered:
            assert row.context is not None
            changed[row.start : row.stop] += row.context.to(stream)
        return changed


class SteeredBlocks(HashKeys):
    """Blocks of steered requests hold other keys and values."""

    domain = "steering"

    def keys(self, request: KVRequest, start: int, stop: int) -> Iterable[bytes]:
        """What the client sent."""
        steering = request.extra.get("steering")
        return () if steering is None else (json.dumps(steering, sort_keys=True).encode(),)


@hookimpl
def corefw_request_extension(config: EngineConfig) -> RequestExtension:
    """Take a vector."""
    return VectorField(config.model_info.hf_config["hidden_size"])


@hookimpl
def corefw_model_taps(config: EngineConfig) -> ModelTaps[torch.Tensor]:
    """Tap one layer."""
    return Steering()


@hookimpl
def corefw_kv_hash_keys() -> HashKeys:
    """Never share blocks between requests that are steered differently."""
    return SteeredBlocks()
