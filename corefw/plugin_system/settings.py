"""Plugins' own sections: declared by a hook, filled once in the front end, handed to the plugins in every process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from corefw.config.plugin_settings import PluginSetting, fill_section, restore_section, section_fields
from corefw.errors import ConfigError, PluginError
from corefw.interfaces.hooks.configuration import PluginSettings, corefw_config_section, corefw_configured
from corefw.plugin_system.names import suggestion

if TYPE_CHECKING:
    from corefw.plugin_system.manager import PluginManager

__all__ = ["PlainSections", "configure_plugins", "declared_sections", "restore_settings"]

PlainSections = dict[str, dict[str, Any]]

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


def declared_sections(plugins: PluginManager) -> dict[str, type[Any]]:
    """By plugin the type of its section, of the general plugins that this process has loaded.

    Raises:
        PluginError: a type can't be a section, or two plugins have one.
    """
    found: dict[str, type[Any]] = {}
    for item in plugins.collect(type, corefw_config_section):
        if _NAME.fullmatch(item.plugin) is None:
            raise PluginError(f"{item.owner} can't have a section: its name {item.plugin!r} can't be part of a flag")
        if item.value in found.values():
            raise PluginError(f"{item.owner}: {item.value.__name__} is another plugin's section; make one of its own")
        try:
            section_fields(item.value)
        except PluginError as error:
            raise PluginError(f"{item.owner}: {error}") from error
        found[item.plugin] = item.value
    return found


def configure_plugins(plugins: PluginManager, given: Mapping[str, Mapping[str, PluginSetting]]) -> PlainSections:
    """Fill every section from what the user said, hand it to its plugin, and return all as plain data.

    Raises:
        ConfigError: a setting is for no plugin, or isn't accepted.
        PluginError: a type can't be a section.
    """
    kinds = declared_sections(plugins)
    for plugin, settings in given.items():
        if plugin not in kinds:
            label = next(iter(settings.values())).label
            raise ConfigError(
                f"{label}: no plugin {plugin[:80]!r} that is loaded has settings; {suggestion(plugin, kinds)}"
            )
    sections = {plugin: fill_section(kind, plugin, given.get(plugin, {})) for plugin, kind in kinds.items()}
    _hand_out(plugins, sections.values())
    return {plugin: msgspec.to_builtins(section) for plugin, section in sections.items()}


def restore_settings(plugins: PluginManager, plain: Mapping[str, Mapping[str, Any]]) -> None:
    """Hand the plugins of this process the sections that the front end filled.

    Raises:
        PluginError: a plugin has another section here than there.
    """
    kinds = declared_sections(plugins)
    _hand_out(plugins, [restore_section(kind, plain.get(plugin, {})) for plugin, kind in kinds.items()])


def _hand_out(plugins: PluginManager, sections: Any) -> None:
    plugins.collect(type(None), corefw_configured, PluginSettings({type(section): section for section in sections}))
