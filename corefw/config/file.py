"""A file of settings: YAML whose keys are named like flags, flat but for plugins' settings and mappings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corefw.config.regular_file import read_regular_text
from corefw.errors import ConfigError

if TYPE_CHECKING:
    import yaml

__all__ = ["FileSetting", "plain_data", "read_settings"]

_MAX_BYTES = 2**18
_MAX_SHOWN = 80
_MAX_PLACE = 400  # of a file and a key in it
_MAX_PLUGIN_NODES = 10_000
_MAX_PLUGIN_DEPTH = 20
_TAKES_MAPPING = "-config"  # settings so named: what is JSON on a command line
_ALLOWLIST = "allow"  # beside the plugins' sections; a plugin of that name has a mapping there

_Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class FileSetting:
    """One line of a file.

    Attributes:
        place: file and line, for messages.
        key: as a flag is written, without its dashes in front; of a plugin's setting the field.
        value: as YAML reads it; of a plugin's setting any plain data.
        plugin: whose setting it is.
    """

    place: str
    key: str
    value: Any
    plugin: str | None = None


def read_settings(path: Path) -> tuple[FileSetting, ...]:
    """The settings in a file, in their order.

    Raises:
        ConfigError: it can't be read or isn't YAML, a key is there twice, or a value isn't plain; names file and line.
    """
    import yaml  # here: only who has a file waits for it

    shown = str(path)[:200]
    try:
        root = yaml.compose(read_regular_text(path, _MAX_BYTES), Loader=yaml.SafeLoader)
    except OSError as error:
        raise ConfigError(f"--config {shown!r} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--config {shown!r} isn't UTF-8 text") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {shown!r} isn't YAML: {_described(error)}") from None
    except RecursionError:
        raise ConfigError(
            f"--config {shown!r} is nested too deeply; write one setting a line, as in port: 8000"
        ) from None
    if root is None or (isinstance(root, yaml.ScalarNode) and not root.value):
        return ()
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"--config {shown!r} must be a mapping: one setting a line, as in port: 8000")
    return _settings(root, shown)


def _settings(root: yaml.MappingNode, shown: str) -> tuple[FileSetting, ...]:
    import yaml

    found: dict[str, FileSetting] = {}
    for key_node, value_node in root.value:
        place = f"{shown}, line {key_node.start_mark.line + 1}"
        key = key_node.value.replace("_", "-") if isinstance(key_node.value, str) else ""
        if not key:
            raise ConfigError(f"{place}: a key must be the name of a flag")
        name = "".join(letter for letter in key[:_MAX_SHOWN] if letter.isprintable())
        if key in found:
            first = found[key].place.rpartition(" ")[2]
            raise ConfigError(f"{place}: {name} is there already, in line {first}")
        if key == "plugins" and isinstance(value_node, yaml.MappingNode):
            found |= _plugin_sections(value_node, shown)
        else:
            found[key] = FileSetting(place, key, _value(value_node, f"{place}: {name}"))
    return tuple(found.values())


def _plugin_sections(root: yaml.MappingNode, shown: str) -> dict[str, FileSetting]:
    """``plugins: {NAME: {FIELD: VALUE}}``; a text under ``allow`` is the allowlist."""
    import yaml

    found: dict[str, FileSetting] = {}
    budget = itertools.count(_MAX_PLUGIN_NODES, -1)
    for plugin, node, place in _pairs(root, f"{shown}, line", "plugins"):
        if plugin == _ALLOWLIST and isinstance(node, yaml.ScalarNode):
            found["plugins"] = FileSetting(place, "plugins", _scalar(node, f"{place}: plugins.{_ALLOWLIST}"))
            continue
        what = f"plugins.{plugin[:_MAX_SHOWN]}"
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{place}: {what} must be a mapping of the plugin's settings")
        for key, value, inner in _pairs(node, f"{shown}, line", what):
            found[f"{what}.{key}"] = FileSetting(
                inner, key, plain_data(value, f"{inner}: {what}.{key}", budget), plugin
            )
    return found


def _pairs(root: yaml.MappingNode, before: str, what: str) -> Iterator[tuple[str, yaml.Node, str]]:
    """Key, value and place of each pair of a mapping."""
    seen: set[str] = set()
    for key_node, value_node in root.value:
        place = f"{before} {key_node.start_mark.line + 1}"
        key = key_node.value if isinstance(key_node.value, str) else ""
        if not key:
            raise ConfigError(f"{place}: {what} has a key that isn't a name")
        if key in seen:
            raise ConfigError(f"{place}: {what}.{key[:_MAX_SHOWN]} is there already")
        seen.add(key)
        yield key, value_node, place


def plain_data(node: yaml.Node, what: str, budget: Iterator[int], depth: int = 0) -> Any:
    """Plain data of any shape, as long as it doesn't grow when it is built.

    Args:
        node: a part of a document.
        what: begins messages.
        budget: counts down to how many more values there may be.
        depth: of nesting so far.

    Raises:
        ConfigError: it is nested too deeply, has too many values, or one that isn't plain.
    """
    import yaml

    if depth > _MAX_PLUGIN_DEPTH:  # an alias may stand for what it is in
        raise ConfigError(f"{what[:_MAX_PLACE]} is nested too deeply")
    if next(budget) <= 0:
        raise ConfigError(f"{what}: there are more than {_MAX_PLUGIN_NODES} values")
    if isinstance(node, yaml.SequenceNode):
        return [plain_data(item, what, budget, depth + 1) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        return {
            key: plain_data(value, f"{what}.{key}", budget, depth + 1)
            for key, value, _ in _pairs(node, f"{what}: line", what)
        }
    return _scalar(node, what)


def _value(node: yaml.Node, what: str) -> Any:
    """A scalar, or a list of them: nothing that could grow when it is built. Of some settings, a mapping."""
    import yaml

    if isinstance(node, yaml.MappingNode) and what.endswith(_TAKES_MAPPING):
        return plain_data(node, what, itertools.count(_MAX_PLUGIN_NODES, -1))
    if isinstance(node, yaml.SequenceNode):
        return tuple(_scalar(item, what) for item in node.value)
    return _scalar(node, what)


def _scalar(node: yaml.Node, what: str) -> _Scalar:
    import yaml

    if not isinstance(node, yaml.ScalarNode):
        raise ConfigError(f"{what} must be a text, a number, true or false, or a list of those")
    try:
        value: Any = yaml.constructor.SafeConstructor().construct_object(node)
    except (yaml.YAMLError, ValueError, LookupError, ArithmeticError):
        raise ConfigError(f"{what} can't be read; write a text in quotes") from None
    if value is None:
        raise ConfigError(f"{what} has no value; leave the line out for the default")
    if not isinstance(value, str | int | float | bool):  # a date, or bytes
        raise ConfigError(f"{what} is read as {type(value).__name__}; write a text in quotes")
    return value


def _described(error: yaml.YAMLError) -> str:
    """The problem and its place, in one line."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
    where = f"line {mark.line + 1}: " if mark is not None else ""
    return f"{where}{' '.join(str(problem).split())[:200]}"
