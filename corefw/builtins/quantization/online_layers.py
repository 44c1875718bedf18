"""Which layer of a model is rounded to what: settings against layers' names. Without torch."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from corefw.config.quantization import PLAIN, OnlineQuantization, QuantSpec
from corefw.errors import ConfigError
from corefw.interfaces.quantization import QuantizableLayer

__all__ = ["LayerChoice", "choose_layers"]

_BLOCK = 32
_VOCABULARY = ("embedding", "lm_head")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """What a layer's weight is rounded to.

    Attributes:
        group: the layer's name without its number.
        spec: None where it stays plain.
        why: who said so, or why it isn't rounded.
    """

    group: str
    spec: QuantSpec | None
    why: str


def choose_layers(
    wanted: OnlineQuantization, layers: Sequence[QuantizableLayer]
) -> tuple[dict[str, LayerChoice], tuple[str, ...]]:
    """By the layers' names, and remarks on settings that no layer matched.

    Raises:
        ConfigError: parts of one layer would have to differ, or a target has nothing for that kind of layer.
    """
    choices = {layer.name: _choice(wanted, layer) for layer in layers}
    patterns = [("targets", target.pattern) for target in wanted.targets]
    patterns += [("ignore", pattern) for pattern in wanted.ignore]
    remarks = [
        f"--quantization-config: {field}: no layer matches {pattern!r}; layers are named like {_example(layers)}"
        for field, pattern in patterns
        if not any(_matches(pattern, names) for layer in layers for names in layer.names)
    ]
    return choices, tuple(remarks)


def _choice(wanted: OnlineQuantization, layer: QuantizableLayer) -> LayerChoice:
    found = [_of_part(wanted, layer, names) for names in layer.names]
    if len({None if spec is None else spec.meaning for spec, _ in found}) > 1:
        told = "; ".join(f"{names[-1]}: {spec or PLAIN}" for names, (spec, _) in zip(layer.names, found, strict=True))
        raise ConfigError(f"--quantization-config: {layer.name} is one layer, but its parts would differ: {told}")
    spec, why = found[0]
    spec = None if spec is None else spec.meaning
    if spec is not None and layer.in_features % _BLOCK:
        spec, why = None, f"its {layer.in_features} inputs aren't whole groups of {_BLOCK}"
    shared = [name for name in layer.names[0] if layer.kind == "lm_head" and not name.startswith("model.")]
    return LayerChoice(" and ".join(shared) or _NUMBER.sub("*", layer.name), spec, why)


def _of_part(wanted: OnlineQuantization, layer: QuantizableLayer, names: Sequence[str]) -> tuple[QuantSpec | None, str]:
    ignored = next((pattern for pattern in wanted.ignore if _matches(pattern, names)), None)
    if ignored is not None:
        return None, f"ignored: {ignored}"
    if wanted.targets:
        return _targeted(wanted, layer, names)
    if layer.kind == "embedding":
        return None, "looked up, not multiplied"
    if layer.kind == "lm_head":
        return wanted.lm_head, "lm_head is set" if wanted.lm_head else "the head stays as it is unless lm_head is set"
    spec = wanted.moe if layer.kind == "moe" else wanted.linear
    return spec, f"{layer.kind} layers" if spec else f"nothing is set for {layer.kind} layers"


def _targeted(
    wanted: OnlineQuantization, layer: QuantizableLayer, names: Sequence[str]
) -> tuple[QuantSpec | None, str]:
    """An exact name goes before patterns, and those in their order. The vocabulary's ends have to be named exactly."""
    exact = [target for target in wanted.targets if target.pattern in names]
    others = [] if layer.kind in _VOCABULARY else [t for t in wanted.targets if _matches(t.pattern, names)]
    target = next(iter((*exact, *others)), None)
    if target is None:
        return None, "no target matches"
    spec = target.moe if layer.kind == "moe" else target.linear
    if spec is None:
        raise ConfigError(
            f"--quantization-config: targets: {target.pattern}: {target.value} has no part for {layer.kind} layers, "
            f"and {layer.name} is one"
        )
    return spec, f"target {target.pattern}"


def _matches(pattern: str, names: Iterable[str]) -> bool:
    if pattern.startswith("re:"):
        expression = re.compile(pattern.removeprefix("re:"))
        return any(expression.match(name) for name in names)
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


def _example(layers: Sequence[QuantizableLayer]) -> str:
    return layers[min(2, len(layers) - 1)].names[0][-1] if layers else "layers.0.mlp.down_proj"
