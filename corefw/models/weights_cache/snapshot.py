"""A model's weights as plain bytes, and back into a model that was built and not loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from corefw.errors import ModelFormatError
from corefw.models.layers.product import WeightLayer
from corefw.models.weights_cache.kept_file import KeptWeights

__all__ = ["NotKeptError", "restore", "snapshot"]

_WEIGHT = "weight"


class NotKeptError(Exception):
    """Why a model's weights can't be kept."""


def snapshot(model: nn.Module) -> tuple[dict[str, Any], list[npt.NDArray[np.uint8]]]:
    """What restores the model, and its tensors: each once, however many layers use it.

    Raises:
        NotKeptError: a tensor can't be kept.
    """
    numbers: dict[tuple[int, int], int] = {}
    tensors: list[npt.NDArray[np.uint8]] = []
    places = []
    for module_name, module, name in _places(model):
        tensor = getattr(module, name).detach()
        raw = _raw(tensor)
        key = (tensor.data_ptr(), raw.nbytes)
        if key not in numbers:
            numbers[key] = len(tensors)
            tensors.append(raw)
        layout = module.layout if isinstance(module, WeightLayer) and name == _WEIGHT else None
        dtype = str(tensor.dtype).removeprefix("torch.")
        places.append([module_name, name, numbers[key], dtype, list(tensor.shape), layout])
    return {"places": places}, tensors


def restore(model: nn.Module, kept: KeptWeights) -> None:
    """Give a model that was built, and not loaded, its weights.

    Raises:
        ModelFormatError: they are another model's.
    """
    expected = {(module_name, name) for module_name, _, name in _places(model)}
    places: Sequence[Sequence[Any]] = kept.about["places"]
    if {(place[0], place[1]) for place in places} != expected:
        raise ModelFormatError("the kept weights aren't those of this model's layers")
    made: dict[tuple[Any, ...], torch.Tensor] = {}
    for module_name, name, number, dtype, shape, layout in places:
        key = (number, dtype, tuple(shape))
        if key not in made:
            made[key] = torch.from_numpy(kept.tensors[number]).view(getattr(torch, dtype)).view(shape)
        module = model.get_submodule(module_name)
        if isinstance(module, WeightLayer) and name == _WEIGHT:
            module.adopt_weight(made[key], layout)
        else:
            getattr(module, name).data = made[key]


def _places(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Every parameter, and every weight that was one before it was prepared."""
    for module_name, module in model.named_modules():
        held: Mapping[str, Any] = module._parameters
        names = dict.fromkeys(name for name, value in held.items() if value is not None)
        if isinstance(module, WeightLayer):
            names[_WEIGHT] = None
        for name in names:
            yield module_name, module, name


def _raw(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    if tensor.is_mkldnn or tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise NotKeptError("a kernel's provider holds them in a form of its own")
    if not tensor.is_contiguous():
        raise NotKeptError("they don't lie in one piece")
    raw: npt.NDArray[np.uint8] = tensor.reshape(-1).view(torch.uint8).numpy()
    return raw
