"""Which quantisation method layers hold their weights by. Torch-free; kernels are asked for in the workers."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from typing import TYPE_CHECKING

from corefw.config.mapping_text import read_mapping
from corefw.config.quantization import CHECKPOINT_NAMES, ONLINE, SHORTHANDS
from corefw.errors import ConfigError
from corefw.models.registry import NATIVE
from corefw.plugin_system.names import suggestion
from corefw.plugin_system.selection import select
from corefw.plugin_system.starting import created, starting

if TYPE_CHECKING:
    from corefw.config.engine_config import ModelConfig
    from corefw.interfaces.quantization import QuantizationMethod, QuantizationRequest
    from corefw.plugin_system.manager import PluginManager

__all__ = ["NONE", "choose_quantization", "read_quantization_config"]

NONE = "none"
_METHODS = "quantization_methods"
_WHAT = "quantization"
_CONFIG_FLAG = "--quantization-config"

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
    if model.quantization_config is not None:
        named = named or ONLINE
        if named == NONE:
            raise ConfigError(f"{_CONFIG_FLAG} can't be beside --quantization {NONE}, which keeps weights plain")
        request = dataclasses.replace(request, settings=json.loads(model.quantization_config))
    if named == NONE:
        return None, ((_WHAT, NONE, "set by --quantization"),)
    if named is not None:
        return _choose_named(named, dataclasses.replace(request, named=True, asked=named), implementation, plugins)
    own = request.info.quantization
    if own is None:
        return None, ()
    reason = _why_not_by_default(own, model, request, implementation, plugins)
    if reason is not None:
        return None, ((_WHAT, NONE, f"weights are dequantised: {reason}"),)
    return own, ((_WHAT, own, "the files are made for it, and --dtype is auto"),)


def read_quantization_config(model: ModelConfig) -> ModelConfig:
    """With the settings themselves where they are in a file, so that every process has the same.

    Raises:
        ConfigError: they can't be read.
    """
    if model.quantization_config is None:
        return model
    settings = read_mapping(model.quantization_config, _CONFIG_FLAG)
    return dataclasses.replace(model, quantization_config=json.dumps(settings, sort_keys=False))


def _choose_named(
    named: str, request: QuantizationRequest, implementation: str, plugins: PluginManager
) -> tuple[str, Decisions]:
    """A plugin of that name, or the one that knows it as a shorthand."""
    names = plugins.names(_METHODS)
    method = ONLINE if named not in names and (named == ONLINE or named in SHORTHANDS) else named
    if method not in names:
        raise ConfigError(_unknown(named, names))
    candidates = [(name, partial(_why_not, name, request, implementation, plugins)) for name in names]
    selection = select("quantization method", candidates, named=method)
    plugins.record(selection)
    asked = f"--quantization {named}" if named != method else "--quantization"
    return selection.chosen, ((_WHAT, selection.chosen, f"set by {asked}"),)


def _unknown(named: str, names: tuple[str, ...]) -> str:
    if named in CHECKPOINT_NAMES:
        return (
            f"--quantization {named}: that is how a checkpoint may be made, and this one's weights are plain; leave it "
            f"out, or round them while they are loaded: {', '.join(SHORTHANDS)}"
        )
    return f"there is no quantization method {named[:80]!r}; {suggestion(named, (*names, *SHORTHANDS, ONLINE, NONE))}"


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
