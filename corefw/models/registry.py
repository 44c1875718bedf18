"""What computes a model: the class of its architecture, or else an implementation plugin.

Importable without torch; only ``model_class`` and ``ModelImplementation.build`` import a model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from corefw.errors import ConfigError
from corefw.models.loading.remote_code import refuse_remote_code
from corefw.plugin_system.selection import select
from corefw.plugin_system.starting import created, starting

if TYPE_CHECKING:
    from torch import nn

    from corefw.config.model_info import ModelInfo
    from corefw.interfaces.model import ModelImplementation, ModelRequest
    from corefw.interfaces.selection import Selection
    from corefw.models.layers.context import BuildContext
    from corefw.plugin_system.manager import PluginManager

__all__ = ["NATIVE", "ModelClass", "architectures", "check_architecture", "choose_implementation", "model_class"]

NATIVE = "native"
_AUTO = "auto"
_CLASSES, _IMPLEMENTATIONS = "model_plugins", "model_implementations"
_REMEDY = (
    "`pip install corefw-models-transformers` adds the implementation 'transformers', for causal language models that "
    "transformers knows; a plugin can also bring a class in the group corefw.model_plugins"
)


class ModelClass(Protocol):
    """What the group ``corefw.model_plugins`` holds, by architecture."""

    def __call__(self, info: ModelInfo, build: BuildContext) -> nn.Module: ...


def architectures(plugins: PluginManager) -> tuple[str, ...]:
    """Every architecture that a plugin brings."""
    return plugins.names(_CLASSES)


def check_architecture(architecture: str, plugins: PluginManager) -> None:
    """Refuse an architecture that nobody brings.

    Raises:
        ConfigError: names those that are known.
    """
    reason = _unknown(architecture, plugins)
    if reason is not None:
        raise ConfigError(f"{reason}. A plugin can add it in the group corefw.{_CLASSES}")


def model_class(architecture: str, plugins: PluginManager) -> ModelClass:
    """The class of an architecture.

    Raises:
        ConfigError: it is unknown.
        PluginError: it can't be loaded.
    """
    check_architecture(architecture, plugins)
    found: Any = plugins.get(_CLASSES, architecture)
    return found  # type: ignore[no-any-return]


def choose_implementation(
    request: ModelRequest, plugins: PluginManager, named: str = _AUTO
) -> tuple[Selection, ModelInfo]:
    """Ask who computes a model: native classes first, then every implementation plugin.

    Returns:
        who does and why, and what is known of the model then.

    Raises:
        ConfigError: nobody can, or the named one can't; with every reason and the remedy.
    """
    asked: dict[str, ModelImplementation] = {}
    installed = plugins.names(_IMPLEMENTATIONS)
    if not installed:
        refuse_remote_code(request.info, architectures(plugins), trusted=request.trust_remote_code)

    def asking(name: str) -> Callable[[], str | None]:
        def supports() -> str | None:
            asked[name] = created(plugins, _IMPLEMENTATIONS, name)
            with starting(plugins, _IMPLEMENTATIONS, name):
                return asked[name].supports(request)

        return supports

    candidates = [(NATIVE, lambda: _unknown(request.info.architecture, plugins))]
    candidates += [(name, asking(name)) for name in installed]
    try:
        selection = select("model implementation", candidates, named=None if named == _AUTO else named)
    except ConfigError as error:
        raise error if installed else ConfigError(f"{error}. {_REMEDY}") from None
    chosen = selection.chosen
    if chosen == NATIVE:
        return selection, request.info
    with starting(plugins, _IMPLEMENTATIONS, chosen):
        return selection, asked[chosen].describe(request)


def _unknown(architecture: str, plugins: PluginManager) -> str | None:
    known = architectures(plugins)
    if architecture in known:
        return None
    listed = ", ".join(sorted(known)) or "none"
    return f"model architecture {architecture[:80]!r} is not supported; known: {listed}"
