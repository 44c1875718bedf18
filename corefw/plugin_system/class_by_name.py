"""A class that a setting names: a plugin's by its name, or any by its import path."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from corefw.errors import ConfigError
from corefw.plugin_system.groups import group_named
from corefw.plugin_system.selection import by_name

if TYPE_CHECKING:
    from corefw.plugin_system.manager import PluginManager

__all__ = ["class_by_name"]


def class_by_name(plugins: PluginManager, group: str, name: str, setting: str) -> Any:
    """A plugin by name, or a class by ``module:Class``.

    Raises:
        ConfigError: there is no such class.
        PluginError: there is no such plugin, or it may not be loaded.
    """
    if ":" not in name:
        found = plugins.get(group, name, setting=setting)
        plugins.record(by_name(group_named(group).what, name, plugins.names(group), setting))
        return found
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{setting} {name[:200]!r} can't be imported: {error}") from error
    if not isinstance(found, type):
        raise ConfigError(f"{setting} {name[:200]!r} is no class; write module:Class")
    return found
