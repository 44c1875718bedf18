"""Plain weights, rounded while they are loaded: ``--quantization int8_per_channel`` and its like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from corefw.builtins.quantization.online_layers import LayerChoice, choose_layers
from corefw.config.quantization import (
    ONLINE,
    PLAIN,
    SHORTHANDS,
    OnlineQuantization,
    QuantSpec,
    resolve_quantization,
)
from corefw.interfaces.quantization import QuantizableLayer, QuantizationMethod, QuantizationRequest, WeightConverter
from corefw.interfaces.selection import Selection

if TYPE_CHECKING:
    import torch

    from corefw.models.layers.blocks import BlockTensor

__all__ = ["OnlineMethod"]

# What can be made, and the block type that holds it.
_TYPES = {
    QuantSpec("int8_per_channel_static"): "Q8_0",
    QuantSpec("int8_per_channel_static", "int8_per_token"): "W8A8",
    QuantSpec("int4_per_group_static"): "Q4_1",
}


class OnlineMethod(QuantizationMethod):
    """Rounds what a shorthand, or ``--quantization-config``, says."""

    name: ClassVar[str] = ONLINE

    def supports(self, request: QuantizationRequest) -> str | None:
        if request.info.quantization is not None or request.info.block_types:
            return (
                f"the model's weights are rounded already ({request.info.quantization or 'in blocks'}); leave "
                "--quantization out to take them as they are, or start from the plain model"
            )
        wanted = _wanted(request)
        if wanted.linear is None and wanted.lm_head is None and not wanted.targets:
            return _nothing(request.asked, wanted)
        return next((reason for spec in wanted.specs if (reason := _why_not(spec))), None)

    def converter(self, request: QuantizationRequest) -> WeightConverter:
        return _Rounding(_wanted(request))


class _Rounding(WeightConverter):
    """Made with complete settings; which layer has what is known once they are told."""

    stays_in_blocks: ClassVar[bool] = True

    def __init__(self, wanted: OnlineQuantization) -> None:
        self._wanted = wanted
        self._choices: dict[str, LayerChoice] = {}
        self._remarks: tuple[str, ...] = ()

    def formats(self) -> Sequence[str]:
        return tuple(dict.fromkeys(kind for spec in self._wanted.specs if (kind := block_type(spec))))

    def plan(self, layers: Sequence[QuantizableLayer]) -> Sequence[Selection]:
        self._choices, self._remarks = choose_layers(self._wanted, layers)
        return _told(self._choices)

    def convert(self, layer: str, weight: torch.Tensor | BlockTensor) -> torch.Tensor | BlockTensor:
        from corefw.models.layers.block_quantizers import quantised_4_bits, quantised_8_bits, quantised_8_bits_both
        from corefw.models.layers.blocks import BlockTensor

        choice = self._choices.get(layer)
        kind = None if choice is None or choice.spec is None else block_type(choice.spec)
        if kind is None or isinstance(weight, BlockTensor):
            return weight
        return {"Q8_0": quantised_8_bits, "W8A8": quantised_8_bits_both, "Q4_1": quantised_4_bits}[kind](weight)

    def remarks(self) -> Sequence[str]:
        return self._remarks


def block_type(spec: QuantSpec) -> str | None:
    """The block type that holds weights of a spec; None for plain ones."""
    return None if spec.meaning is None else _TYPES.get(spec.meaning)


def _wanted(request: QuantizationRequest) -> OnlineQuantization:
    return resolve_quantization(request.asked, request.settings)


def _why_not(spec: QuantSpec) -> str | None:
    if spec.weight in (None, PLAIN):
        inputs = spec.activation not in (None, PLAIN)
        return f"inputs in {spec.activation} need weights that are rounded, too: set weight" if inputs else None
    if block_type(spec) is not None:
        return None
    known = ", ".join(str(other) for other in _TYPES)
    return f"there is nothing that computes {spec}; what there is: {known}"


def _nothing(asked: str | None, wanted: OnlineQuantization) -> str:
    if wanted.moe is not None:
        both = [name for name, parts in SHORTHANDS.items() if parts.linear and block_type(parts.linear)]
        return (
            f"{asked if asked in SHORTHANDS else 'what it is told'} is for layers of experts alone, and the model has "
            f"none; for linear layers there are {', '.join(both)}"
        )
    return f"--quantization {ONLINE} needs --quantization-config, which says what is rounded"


def _told(choices: dict[str, LayerChoice]) -> tuple[Selection, ...]:
    """One line for layers of the same place in every layer that have the same."""
    groups: dict[tuple[str, str, str], int] = {}
    for choice in choices.values():
        key = (choice.group, str(choice.spec or PLAIN), choice.why)
        groups[key] = groups.get(key, 0) + 1
    return tuple(
        Selection(f"weights of {group}" + (f" ({count} layers)" if count > 1 else ""), spec, why)
        for (group, spec, why), count in groups.items()
    )
