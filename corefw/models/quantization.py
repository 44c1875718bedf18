"""In a worker: which block types of a model's weights are computed as they are, and by whose kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corefw.errors import ConfigError
from corefw.interfaces.quantization import QuantizationRequest
from corefw.interfaces.selection import Selection
from corefw.plugin_system.starting import created, starting

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.interfaces.quantization import QuantizationMethod, WeightConverter
    from corefw.models.ops.binder import OpBinder
    from corefw.plugin_system.manager import PluginManager

__all__ = ["QuantizationPlan", "plan_quantization"]

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
    named = config.model.quantization is not None
    request = QuantizationRequest(info=config.model_info, dtype=config.dtype, device_type=device_type, named=named)
    method: QuantizationMethod = created(plugins, _METHODS, name)
    with starting(plugins, _METHODS, name):
        converter = method.converter(request)
        formats = tuple(converter.formats())
    asked = {kind: _ask(kind, binder) for kind in formats}
    types = frozenset(kind for kind, answer in asked.items() if isinstance(answer, Selection))
    if named and not types:
        reasons = "; ".join(f"{kind}: {answer}" for kind, answer in asked.items()) or "it has no block types"
        raise ConfigError(f"--quantization {name}: no weight could be computed so ({reasons})")
    selections = tuple(_selection(kind, answer) for kind, answer in asked.items())
    return (QuantizationPlan(converter, types) if types else None), selections


def _ask(kind: str, binder: OpBinder) -> Selection | ConfigError:
    """By whom weights of a type are computed, or why by nobody."""
    try:
        answers: Sequence[Selection] = [binder.candidates(op, kind) for op in _OPS]
    except ConfigError as error:
        return error
    return answers[0]


def _selection(kind: str, answer: Selection | ConfigError) -> Selection:
    what = f"weights in {kind}"
    if isinstance(answer, Selection):
        return Selection(what, "computed in blocks", f"kernels of {answer.chosen}", answer.rejected)
    return Selection(what, "dequantised", str(answer))
