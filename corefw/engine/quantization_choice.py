"""Which quantisation method layers hold their weights by. Torch-free; kernels are asked for in the workers."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

from corefw.models.registry import NATIVE
from corefw.plugin_system.selection import select
from corefw.plugin_system.starting import created, starting

if TYPE_CHECKING:
    from corefw.config.engine_config import ModelConfig
    from corefw.interfaces.quantization import QuantizationMethod, QuantizationRequest
    from corefw.plugin_system.manager import PluginManager

__all__ = ["NONE", "choose_quantization"]

NONE = "none"
_METHODS = "quantization_methods"
_WHAT = "quantization"

Decisions = tuple[tuple[str, str, str], ...]


def choose_quantization(
    model: ModelConfig, request: QuantizationRequest, implementation: str, plugins: PluginManager
) -> tuple[str | None, Decisions]:
    """The method, and the decision to print.

    Args:
        model: what the operator asked for.
        request: the model with its resolved dtype.
        implementation: what computes the model; only native classes have layers that hold blocks.
        plugins: the plugin set.

    Raises:
        ConfigError: the method that was asked for is unknown or can't serve the model.
    """
    named = model.quantization
    if named == NONE:
        return None, ((_WHAT, NONE, "set by --quantization"),)
    if named is not None:
        asked = dataclasses.replace(request, named=True)
        candidates = [
            (name, partial(_why_not, name, asked, implementation, plugins)) for name in plugins.names(_METHODS)
        ]
        selection = select("quantization method", candidates, named=named)
        plugins.record(selection)
        return selection.chosen, ((_WHAT, selection.chosen, "set by --quantization"),)
    own = request.info.quantization
    if own is None:
        return None, ()
    reason = _why_not_by_default(own, model, request, implementation, plugins)
    if reason is not None:
        return None, ((_WHAT, NONE, f"weights are dequantised: {reason}"),)
    return own, ((_WHAT, own, "the files are made for it, and --dtype is auto"),)


def _why_not_by_default(
    own: str, model: ModelConfig, request: QuantizationRequest, implementation: str, plugins: PluginManager
) -> str | None:
    if model.dtype != "auto":
        return f"--dtype {model.dtype} asks for weights of that type (--quantization {own} keeps them as they are)"
    if own not in plugins.names(_METHODS):
        return f"no plugin brings the quantization method {own!r}"
    return _why_not(own, request, implementation, plugins)


def _why_not(name: str, request: QuantizationRequest, implementation: str, plugins: PluginManager) -> str | None:
    if implementation != NATIVE:
        return f"the model implementation {implementation!r} holds plain weights"
    method: QuantizationMethod = created(plugins, _METHODS, name)
    with starting(plugins, _METHODS, name):
        return method.supports(request)
