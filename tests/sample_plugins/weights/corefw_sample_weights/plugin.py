"""Leaves out what a checkpoint has beside the model, scales the head, and makes a tensor that the files lack."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from corefw.interfaces.hooks.configuration import PluginSettings
from corefw.interfaces.hooks.loading import WeightFilter, WeightTransform
from corefw.sdk.plugins import hookimpl


@dataclass
class Weights:
    """What becomes of the weights."""

    skip_prefix: str = ""
    head_scale: float = 1.0
    neutral_final_norm: bool = False


_weights = Weights()


@hookimpl
def corefw_config_section() -> type[Weights]:
    return Weights


@hookimpl
def corefw_configured(settings: PluginSettings) -> None:
    global _weights
    _weights = settings.of(Weights)


@hookimpl
def corefw_weight_filter() -> WeightFilter | None:
    return _Skip(_weights.skip_prefix) if _weights.skip_prefix else None


@hookimpl
def corefw_weight_transform() -> WeightTransform:
    return _Change(_weights)


class _Skip(WeightFilter):
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def skip(self, name: str) -> str | None:
        return f"its name begins with {self._prefix}" if name.startswith(self._prefix) else None


class _Change(WeightTransform):
    def __init__(self, wanted: Weights) -> None:
        self._wanted = wanted
        self._norm_shape: torch.Size | None = None

    def transform(self, name: str, tensor: torch.Tensor) -> Iterable[tuple[str, torch.Tensor]]:
        if name == "lm_head.weight":
            yield name, tensor * self._wanted.head_scale
        elif name == "model.norm.weight" and self._wanted.neutral_final_norm:
            self._norm_shape = tensor.shape
        else:
            yield name, tensor

    def finish(self) -> Iterable[tuple[str, torch.Tensor]]:
        if self._norm_shape is not None:
            yield "model.norm.weight", torch.ones(self._norm_shape)
