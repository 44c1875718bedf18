"""In a worker: which block types of a model's weights are computed as they are, and by whose kernels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corefw.errors import ConfigError
from corefw.interfaces.quantization import QuantizationRequest
from corefw.interfaces.selection import Selection
from corefw.models.layers.product import quantizable_layers
from corefw.plugin_system.starting import created, starting

if TYPE_CHECKING:
    from torch import nn

    from corefw.config.engine_config import EngineConfig
    from corefw.interfaces.quantization import QuantizationMethod, WeightConverter
    from corefw.models.ops.binder import OpBinder
    from corefw.plugin_system.manager import PluginManager

__all__ = ["QuantizationPlan", "plan_quantization", "tell_layers"]

_METHODS = "quantization_methods"
_OPS = ("quantized_linear", "quantized_embedding")


@dataclass(frozen=True, slots=True)
class QuantizationPlan:
    """How the layers of a model hold their weights.

    Attributes:
        converter: what it makes of each piece of a weight.
        types: block types that kernels compute here; what comes in others is dequantised.
    """

    converter: WeightConverter
    types: frozenset[str]


def plan_quantization(
    config: EngineConfig, binder: OpBinder, device_type: str, plugins: PluginManager
) -> tuple[QuantizationPlan | None, tuple[Selection, ...]]:
    """Ask the op providers for each block type that the method of the configuration may hand to layers.

    Returns:
        the plan, None where every weight is plain; and for each type what was chosen and why.

    Raises:
        ConfigError: the operator named the method, and no kernel computes any of its types.
    """
    name = config.quantization
    if name is None:
        return None, ()
    asked, settings = config.model.quantization, config.model.quantization_config
    named = asked is not None or settings is not None
    request = QuantizationRequest(
        info=config.model_info,
        dtype=config.dtype,
        device_type=device_type,
        named=named,
        asked=asked,
        settings=json.loads(settings) if settings else {},
    )
    method: QuantizationMethod = created(plugins, _METHODS, name)
    with starting(plugins, _METHODS, name):
        converter = method.converter(request)
        formats = tuple(converter.formats())
    answers = {kind: _ask(kind, binder, converter) for kind in formats}
    types = frozenset(kind for kind, answer in answers.items() if isinstance(answer, Selection))
    if named and not types:
        reasons = "; ".join(f"{kind}: {answer}" for kind, answer in answers.items()) or "it has no block types"
        raise ConfigError(f"--quantization {name}: no weight could be computed so ({reasons})")
    selections = tuple(_selection(kind, answer, binder) for kind, answer in answers.items())
    return (QuantizationPlan(converter, types) if types else None), selections


def tell_layers(model: nn.Module, plan: QuantizationPlan) -> tuple[Selection, ...]:
    """Tell the converter a model's layers.

    Returns:
        what it says of them, to print.
    """
    layers = quantizable_layers(model)
    return tuple(plan.converter.plan(layers))


def _ask(kind: str, binder: OpBinder, converter: WeightConverter) -> Selection | ConfigError:
    """By whom weights of a type are computed, or why by nobody."""
    try:
        answers: Sequence[Selection] = [binder.candidates(op, kind) for op in _OPS]
    except ConfigError as error:
        return error
    if not converter.stays_in_blocks and binder.widens(_OPS[0], kind):
        others = "; ".join(f"not {other.name}: {other.reason}" for other in answers[0].rejected)
        return ConfigError(f"no kernel computes it as it is ({others or 'there are no other providers'})")
    return answers[0]


def _selection(kind: str, answer: Selection | ConfigError, binder: OpBinder) -> Selection:
    what = f"weights in {kind}"
    if not isinstance(answer, Selection):
        return Selection(what, "dequantised", str(answer))
    if binder.widens(_OPS[0], kind):
        why = f"by {answer.chosen}: slower than plain weights; the pack corefw-cpu-kernels computes them as they are"
        return Selection(what, "widened in every product", why, answer.rejected)
    return Selection(what, "computed in blocks", f"kernels of {answer.chosen}", answer.rejected)
