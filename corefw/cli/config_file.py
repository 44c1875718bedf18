"""``--config``: settings of a file become what flags are when they aren't given."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corefw.cli.plugin_flags import PLUGIN_FLAG
from corefw.config.args import check_setting
from corefw.config.file import FileSetting, read_settings
from corefw.config.plugin_settings import PluginSetting, setting_key
from corefw.errors import ConfigError

__all__ = ["add_config_flag", "apply_config_file"]

_FLAG = "--config"
_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text (in quotes where YAML reads another type)",
}


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    """Add it; ``apply_config_file`` heeds it."""
    parser.add_argument(
        _FLAG, metavar="FILE", help="YAML file whose keys are the names of flags; flags of the command line win"
    )


def apply_config_file(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Make the settings of the file that ``words`` name the defaults of this parser's flags.

    A flag among ``words`` keeps its own: a list there replaces the file's.

    Raises:
        ConfigError: names file, line and key.
    """
    name = _named_file(words)
    if name is None:
        return
    actions = _actions(parser)
    try:
        path = Path(name).expanduser()
    except RuntimeError:  # ~ of an unknown user
        path = Path(name)
    takes_plugin_settings = PLUGIN_FLAG in parser._option_string_actions
    for setting in read_settings(path):
        if setting.plugin is not None and takes_plugin_settings:
            label = f"{setting.place}: plugins.{setting.plugin}.{setting.key}"
            value = PluginSetting(setting.value, label)
            parser.set_defaults(**{setting_key(setting.plugin, setting.key): value})
            continue
        action = actions.get(setting.key)
        if action is None:
            near = difflib.get_close_matches(setting.key, actions, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{setting.place}: {setting.key[:80]!r} is no flag of {parser.prog}{hint}")
        value = _converted(action, setting)
        if not _is_given(action, words):
            action.default, action.required = value, False


def _named_file(words: Sequence[str]) -> str | None:
    """The file's name. argparse never takes a word with dashes for another flag's value, so looking is enough."""
    name = None
    for i, word in enumerate(words):
        if word == "--":
            break
        if word.startswith(f"{_FLAG}="):
            name = word.partition("=")[2]
        elif word == _FLAG and i + 1 < len(words):
            name = words[i + 1]
    return name


def _actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Flags by the name that a file uses, and MODEL."""
    found = {}
    for action in parser._actions:
        names = [text.removeprefix("--") for text in action.option_strings if text.startswith("--")]
        if action.dest == "model.model":
            names = ["model"]
        if names and names[0] not in ("help", "version", "config"):
            found[names[0]] = action
    return found


def _is_given(action: argparse.Action, words: Sequence[str]) -> bool:
    """Among the words; a positional one replaces its default by itself."""
    for word in words:
        if word == "--":
            break
        for text in action.option_strings:
            short = not text.startswith("--")
            if word == text or word.startswith(f"{text}=") or (short and word.startswith(text)):
                return True
    return False


def _converted(action: argparse.Action, setting: FileSetting) -> Any:
    what = f"{setting.place}: {setting.key}"
    if "." in action.dest:
        value = check_setting(action.dest, setting.value, what)
        return list(value) if isinstance(value, tuple) else value
    is_list = action.nargs in ("*", "+") or isinstance(action, argparse._AppendAction)
    kind: Any = bool if action.nargs == 0 else action.type if action.type in (int, float) else str
    values = setting.value if isinstance(setting.value, tuple) else (setting.value,)
    if isinstance(setting.value, tuple) and not is_list:
        raise ConfigError(f"{what} must be {_KINDS[kind]}, got a list")
    for value in values:
        if not isinstance(value, (int, float) if kind is float else kind) or isinstance(value, bool) != (kind is bool):
            raise ConfigError(f"{what} must be {_KINDS[kind]}, got {type(value).__name__}")
        if action.choices is not None and value not in action.choices:
            raise ConfigError(
                f"{what} {str(value)[:40]!r} is unknown; use one of {', '.join(map(str, action.choices))}"
            )
    return list(values) if is_list else values[0]
