"""Architecture → model class. Importable without torch; only ``model_class`` imports a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from corefw.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from corefw.config.model_info import ModelInfo
    from corefw.models.layers.context import BuildContext
    from corefw.plugin_system.manager import PluginManager

__all__ = ["ModelClass", "architectures", "check_architecture", "model_class"]

_GROUP = "model_plugins"


class ModelClass(Protocol):
    """What the group ``corefw.model_plugins`` holds, by architecture."""

    def __call__(self, info: ModelInfo, build: BuildContext) -> nn.Module: ...


def architectures(plugins: PluginManager) -> tuple[str, ...]:
    """Every architecture that a plugin brings."""
    return plugins.names(_GROUP)


def check_architecture(architecture: str, plugins: PluginManager) -> None:
    """Refuse an architecture that nobody brings.

    Raises:
        ConfigError: names those that are known.
    """
    known = architectures(plugins)
    if architecture not in known:
        raise ConfigError(
            f"model architecture {architecture[:80]!r} is not supported; known: {', '.join(sorted(known)) or 'none'}. "
            "A plugin can add it in the group corefw.model_plugins"
        )


def model_class(architecture: str, plugins: PluginManager) -> ModelClass:
    """The class of an architecture.

    Raises:
        ConfigError: it is unknown.
        PluginError: it can't be loaded.
    """
    check_architecture(architecture, plugins)
    found: Any = plugins.get(_GROUP, architecture)
    return found  # type: ignore[no-any-return]
