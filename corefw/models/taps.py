"""Tap points: named places of a decoder where a plugin may look at tensors, or change them.

A tap is a forward hook on the module where it sits, put there when the model is built. Without taps there is no hook,
and a forward pass contains nothing of this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches

import torch
from torch import nn

from corefw.errors import ConfigError

__all__ = ["Observer", "Tap", "UnknownTapPoint", "install_taps"]

Observer = Callable[..., "torch.Tensor | tuple[torch.Tensor, ...] | None"]


class UnknownTapPoint(ConfigError):  # noqa: N818 - says what it is
    """A point that the model doesn't have.

    Attributes:
        point: its name.
    """

    def __init__(self, point: str, message: str) -> None:
        super().__init__(message)
        self.point = point


class Tap:
    """One tap point that was built in.

    Attributes:
        name: e.g. ``layers.3.residual``.
        observers: called in order with the point's tensors; one that returns something replaces them. At ``residual``
            rows that it leaves as they are go on bit for bit; the others may be rounded once more, since a layer gives
            the stream as a sum of two.
    """

    __slots__ = ("name", "observers")

    def __init__(self, name: str) -> None:
        self.name = name
        self.observers: list[Observer] = []

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Show the tensors; returns them, or what replaced them."""
        for observer in self.observers:
            replaced = observer(*tensors)
            if replaced is not None:
                tensors = replaced if isinstance(replaced, tuple) else (replaced,)
        return tensors


def install_taps(
    wanted: frozenset[str], layers: Sequence[nn.Module], attention: Sequence[nn.Module], lm_head: nn.Module
) -> Mapping[str, Tap]:
    """Hook the wanted points.

    Raises:
        ConfigError: there is no such point.
    """
    places: dict[str, Callable[[Tap], object]] = {
        "lm_head.input": lambda tap: _before(lm_head, tap),
        "logits": lambda tap: _after(lm_head, tap),
    }
    for index, (layer, attend) in enumerate(zip(layers, attention, strict=True)):
        places[f"layers.{index}.residual"] = lambda tap, layer=layer: _stream(layer, tap)  # type: ignore[misc]
        places[f"layers.{index}.qkv"] = lambda tap, attend=attend: _before(attend, tap)  # type: ignore[misc]
    taps: dict[str, Tap] = {}
    for name in sorted(wanted):
        if name not in places:
            near = ", ".join(get_close_matches(name, places, n=3) or ["lm_head.input", "logits", "layers.0.residual"])
            raise UnknownTapPoint(name, f"the model has no tap point {name[:80]!r}; nearest: {near}")
        taps[name] = Tap(name)
        places[name](taps[name])
    return taps


def _before(module: nn.Module, tap: Tap) -> object:
    return module.register_forward_pre_hook(lambda _module, args: tap(*args))


def _after(module: nn.Module, tap: Tap) -> object:
    return module.register_forward_hook(lambda _module, _args, out: tap(out)[0])


def _stream(layer: nn.Module, tap: Tap) -> object:
    def show(
        _module: nn.Module, _args: object, out: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        hidden, residual = out
        stream = hidden + residual
        (shown,) = tap(stream)
        if shown is stream:
            return None
        changed = (shown != stream).any(dim=-1, keepdim=True)
        return torch.where(changed, shown - residual, hidden), residual

    return layer.register_forward_hook(show)
