"""What the user said, and only that: values by ``section.field``, from flags or keywords."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from corefw.config.checks import check_option
from corefw.config.engine_config import (
    CacheConfig,
    CompilationConfig,
    DeviceConfig,
    FrontendConfig,
    KVTransferConfig,
    LoadConfig,
    ModelConfig,
    ParallelConfig,
    PluginConfig,
    SchedulerConfig,
    ServerConfig,
)
from corefw.config.mapping_text import mapping_text
from corefw.config.plugin_settings import PluginSetting, setting_key, settings_by_plugin
from corefw.errors import ConfigError

__all__ = ["SECTIONS", "UserArgs", "add_flags", "check_setting", "parse_bytes"]

SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "load": LoadConfig,
    "cache": CacheConfig,
    "kv_transfer": KVTransferConfig,
    "scheduler": SchedulerConfig,
    "parallel": ParallelConfig,
    "device": DeviceConfig,
    "compilation": CompilationConfig,
    "plugins": PluginConfig,
    "frontend": FrontendConfig,
    "server": ServerConfig,
}
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


@dataclass(frozen=True, slots=True)
class UserArgs:
    """Explicit settings. ``values`` maps ``section.field`` to a typed value; what isn't there is a default.

    Values of plugins' own sections lie beside them, unchecked: see ``corefw.config.plugin_settings``.
    """

    values: Mapping[str, object] = field(default_factory=dict)

    @property
    def explicit(self) -> frozenset[str]:
        """The fields that the user set."""
        return frozenset(self.values)

    def section(self, name: str) -> dict[str, Any]:
        """Keyword arguments of one section."""
        prefix = f"{name}."
        return {key[len(prefix) :]: value for key, value in self.values.items() if key.startswith(prefix)}

    @property
    def plugin_settings(self) -> dict[str, dict[str, PluginSetting]]:
        """What is meant for plugins' own sections, by plugin and field."""
        return settings_by_plugin(self.values)

    @classmethod
    def from_keywords(
        cls, *, plugin_config: Mapping[str, Mapping[str, object]] | None = None, **keywords: object
    ) -> UserArgs:
        """From Python keywords, named like the flags (``max_model_len=512``).

        Args:
            plugin_config: values of plugins' own sections, by plugin and field.
            keywords: everything else.

        Raises:
            ConfigError: an unknown keyword; names the nearest one.
        """
        homes = {item.name: section for section, item in _options()}
        homes["model"] = "model"
        values = _plugin_values(plugin_config or {})
        for key, value in keywords.items():
            if key not in homes:
                near = difflib.get_close_matches(key, homes, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"unknown setting {key[:60]!r}{hint}")
            values[f"{homes[key]}.{key}"] = _from_python(key, value)
        return cls(values)

    def keywords(self) -> dict[str, Any]:
        """The same settings as ``from_keywords`` takes them."""
        plain = {key.partition(".")[2]: v for key, v in self.values.items() if not isinstance(v, PluginSetting)}
        return {**plain, "plugin_config": self.plugin_settings} if self.plugin_settings else plain

    def flags(self) -> list[str]:
        """The flags by which a command line says the same, without their values."""
        names = (
            key.removeprefix("plugin:") if isinstance(value, PluginSetting) else key.partition(".")[2]
            for key, value in self.values.items()
        )
        return sorted(f"--{name.replace('_', '-')}" for name in names)

    @classmethod
    def from_namespace(cls, namespace: argparse.Namespace) -> UserArgs:
        """From a parser that ``add_flags`` filled."""
        values = {key: value for key, value in vars(namespace).items() if "." in key}
        return cls({key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def parse_bytes(text: str) -> int:
    """``4GiB``, ``512M``, ``1000000`` → bytes.

    Raises:
        ConfigError: not a size.
    """
    raw = text.strip().upper()
    raw = raw.removesuffix("B")
    digits = raw.rstrip("KMGTI")
    unit = raw[len(digits) :]
    try:
        number = int(digits) if digits.isdecimal() else float(digits)  # a float is exact only up to 2**53
        return int(number * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise ConfigError(
            f"{text[:40]!r} is not a size; write bytes or a number with K, M, G, T, KiB, MiB, GiB, TiB"
        ) from None


def add_flags(parser: argparse.ArgumentParser, sections: tuple[str, ...] = tuple(SECTIONS)) -> None:
    """Add a flag for every option of these sections; a flag that isn't given leaves no trace in the namespace."""
    groups: dict[str, Any] = {}
    for section, item in _options():
        if section in sections:
            group = groups.get(section) or groups.setdefault(section, parser.add_argument_group(section))
            group.add_argument(f"--{item.name.replace('_', '-')}", **_flag_settings(section, item))


def check_setting(key: str, value: Any, label: str) -> Any:
    """The typed value of ``section.field``, from what a file has: sizes may have units, one text may stand for a list.

    Raises:
        ConfigError: it isn't accepted; begins with ``label``.
    """
    section, _, name = key.partition(".")
    owner = SECTIONS[section]
    item = next(item for item in dataclasses.fields(owner) if item.name == name)
    hint = _plain_type(typing.get_type_hints(owner)[name])
    if isinstance(value, Mapping) and item.metadata.get("mapping"):
        value = mapping_text(value, label)
    if typing.get_origin(hint) is tuple and isinstance(value, str):
        value = (value,)
    elif isinstance(value, tuple) and typing.get_origin(hint) is not tuple:
        raise ConfigError(f"{label} takes one value, got a list")
    elif _is_size(name) and isinstance(value, str):
        try:
            value = parse_bytes(value)
        except ConfigError as error:
            raise ConfigError(f"{label}: {error}") from None
    elif item.metadata.get("choices") and isinstance(value, str):
        value = _word(item.metadata["choices"], value)
    check_option(owner, name, value, label)
    return value


def _from_python(key: str, value: object) -> object:
    if isinstance(value, Mapping) and any(item.name == key and item.metadata.get("mapping") for _, item in _options()):
        return mapping_text(value, key)
    return tuple(value) if isinstance(value, list) else value


def _plugin_values(config: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    values: dict[str, object] = {}
    for plugin, section in config.items():
        if not isinstance(section, Mapping):
            raise ConfigError(f"plugin_config[{plugin[:40]!r}] must be a mapping, got {type(section).__name__}")
        for name, value in section.items():
            label = f"plugin_config[{plugin[:40]!r}][{name[:40]!r}]"
            is_raw = isinstance(value, PluginSetting)
            values[setting_key(plugin, name)] = value if is_raw else PluginSetting(value, label)
    return values


def _options() -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    for section, owner in SECTIONS.items():
        for item in dataclasses.fields(owner):
            if item.metadata.get("help"):
                yield section, item


def _flag_settings(section: str, item: dataclasses.Field[Any]) -> dict[str, Any]:
    hint = _plain_type(typing.get_type_hints(SECTIONS[section])[item.name])
    text = item.metadata["help"]
    if item.default not in (None, (), ""):
        text += f" (default: {' '.join(item.default) if isinstance(item.default, tuple) else item.default})"
    settings: dict[str, Any] = {
        "dest": f"{section}.{item.name}",
        "default": argparse.SUPPRESS,
        "help": text.replace("%", "%%"),
    }
    if hint is bool:
        return {**settings, "action": argparse.BooleanOptionalAction}
    if typing.get_origin(hint) is tuple:
        return {**settings, "action": "append", "metavar": item.name.upper()}
    if item.metadata.get("choices"):
        settings["choices"] = item.metadata["choices"]
    else:
        settings["metavar"] = "SIZE" if _is_size(item.name) else getattr(hint, "__name__", "value").upper()
    settings["type"] = _flag_type(item, hint)
    return settings


def _flag_type(item: dataclasses.Field[Any], hint: Any) -> Any:
    if _is_size(item.name):
        return _size
    if hint in (int, float):
        return functools.partial(_number, hint)
    choices = item.metadata.get("choices")
    return functools.partial(_word, choices) if choices else hint


def _number(kind: type[int] | type[float], text: str) -> float:
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not {what}") from None


def _word(choices: tuple[str, ...], text: str) -> str:
    """The choice that is meant, whatever its case."""
    return next((choice for choice in choices if choice.lower() == text.strip().lower()), text[:40])


def _plain_type(hint: Any) -> Any:
    """``int | None`` → ``int``."""
    if isinstance(hint, types.UnionType):
        return next(part for part in hint.__args__ if part is not types.NoneType)
    return hint


def _is_size(name: str) -> bool:
    return name.endswith(("_bytes", "_memory"))


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
