"""Flags of plugins' own sections: ``--NAME.FIELD VALUE``. Only a page of help has to load plugins to know them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from corefw.config.plugin_settings import PluginSetting, section_fields, setting_key
from corefw.errors import ConfigError, CorefwError

__all__ = ["PLUGIN_FLAG", "add_plugin_flag", "list_plugin_flags", "take_plugin_flags"]

PLUGIN_FLAG = "--PLUGIN.FIELD"


def add_plugin_flag(parser: argparse.ArgumentParser) -> None:
    """Let the parser take settings of plugins. No flag of corefw's own has a dot, so that none can collide."""
    parser.add_argument(
        PLUGIN_FLAG,
        metavar="VALUE",
        dest="plugin_setting",
        default=argparse.SUPPRESS,
        help="setting of a plugin: a number, a text, true or false, else JSON",
    )


def take_plugin_flags(words: Sequence[str]) -> tuple[list[str], dict[str, PluginSetting]]:
    """The other words, and by key what is meant for plugins.

    Raises:
        ConfigError: a value is missing.
    """
    rest: list[str] = []
    taken: dict[str, PluginSetting] = {}
    index = 0
    while index < len(words) and words[index] != "--":
        word = words[index]
        index += 1
        flag, has_value, value = word.partition("=")
        if not flag.startswith("--") or "." not in flag:
            rest.append(word)
            continue
        plugin, _, name = flag.removeprefix("--").rpartition(".")
        if not has_value:
            if index == len(words) or words[index].startswith("--"):
                raise ConfigError(f"{flag[:80]} needs a value")
            value, index = words[index], index + 1
        taken[setting_key(plugin, name)] = PluginSetting(value, flag[:120], is_text=True)
    return [*rest, *words[index:]], taken


def list_plugin_flags(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Load the plugins that ``words`` allow, and add their settings to the parser's help, or say of whom not."""
    from corefw.cli.patience import sections_in_time
    from corefw.plugin_system.manager import PluginManager

    given = _allowance(parser, words)
    try:
        plugins = PluginManager.discover(given.get("plugins"), given.get("plugin_policy") or "normal")
        sections, late = sections_in_time(plugins)
    except CorefwError as error:
        parser.add_argument_group("settings of plugins", f"can't be listed: {error}".replace("%", "%%"))
        return
    for name in late:
        parser.add_argument_group(
            f"settings of plugin {name}", "not listed: loading it takes too long (`corefw plugins doctor` says more)"
        )
    for plugin, kind in sections.items():
        group = parser.add_argument_group(f"settings of plugin {plugin}", _first_line(kind))
        for item in section_fields(kind):
            flag = f"--{plugin}.{item.name.replace('_', '-')}"
            text = f"{item.type_name} (default: {item.default})"
            group.add_argument(
                flag, dest=setting_key(plugin, item.name), metavar="VALUE", help=text.replace("%", "%%"),
                default=argparse.SUPPRESS,
            )  # fmt: skip


def _allowance(parser: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, Any]:
    """``--plugins`` and ``--plugin-policy``, of the words or of the file that gave the parser its defaults."""
    found: dict[str, Any] = {}
    for name in ("plugins", "plugin_policy"):
        flag = f"--{name.replace('_', '-')}"
        action = parser._option_string_actions.get(flag)
        if action is not None and action.default is not argparse.SUPPRESS:
            found[name] = action.default
        for index, word in enumerate(words):
            if word.startswith(f"{flag}="):
                found[name] = word.partition("=")[2]
            elif word == flag and index + 1 < len(words):
                found[name] = words[index + 1]
    return found


def _first_line(kind: type[Any]) -> str | None:
    """What the author wrote about the section; a dataclass without a docstring has its signature there."""
    text = (kind.__doc__ or "").strip().partition("\n")[0]
    return None if not text or text.startswith(f"{kind.__name__}(") else text.replace("%", "%%")
