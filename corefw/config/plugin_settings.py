"""Plugins' own sections: what the user said of them, and how it becomes typed values."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from corefw.errors import ConfigError, PluginError

__all__ = [
    "PluginSetting",
    "SectionField",
    "fill_section",
    "restore_section",
    "section_fields",
    "setting_key",
    "settings_by_plugin",
]

_PREFIX = "plugin:"
_MAX_SHOWN = 80


@dataclass(frozen=True, slots=True)
class PluginSetting:
    """One value for a plugin's section, not checked yet.

    Attributes:
        value: plain data; a text where ``is_text``.
        label: where it was written, for messages.
        is_text: it comes from the command line, so that numbers are still texts.
    """

    value: Any
    label: str
    is_text: bool = False


@dataclass(frozen=True, slots=True)
class SectionField:
    """A field of a plugin's section."""

    name: str
    hint: Any
    default: Any

    @property
    def type_name(self) -> str:
        """Its type, as help shows it."""
        return self.hint.__name__ if isinstance(self.hint, type) else str(self.hint).replace("typing.", "")


def setting_key(plugin: str, name: str) -> str:
    """The key of a plugin's setting among ``UserArgs.values``; dashes in the field's name are underscores."""
    return f"{_PREFIX}{plugin}.{name.replace('-', '_')}"


def settings_by_plugin(values: Mapping[str, object]) -> dict[str, dict[str, PluginSetting]]:
    """Of ``UserArgs.values``, what is meant for plugins, by plugin and field."""
    found: dict[str, dict[str, PluginSetting]] = {}
    for key, value in values.items():
        if isinstance(value, PluginSetting):
            plugin, _, name = key.removeprefix(_PREFIX).rpartition(".")
            found.setdefault(plugin, {})[name] = value
    return found


def section_fields(kind: type[Any]) -> tuple[SectionField, ...]:
    """The fields of a section, in order.

    Raises:
        PluginError: the type can't be a section.
    """
    what = f"{kind.__module__}.{kind.__qualname__}"
    if not (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)):
        raise PluginError(f"{what} can't be a section: it is neither a dataclass nor a msgspec.Struct")
    try:
        defaults = kind()
        msgspec.to_builtins(defaults)
        hints = typing.get_type_hints(kind, include_extras=True)
    except Exception as error:
        raise PluginError(
            f"{what} can't be a section: it needs plain data and a default for each field ({error})"
        ) from error
    names = _field_names(kind)
    return tuple(SectionField(name, hints[name], getattr(defaults, name)) for name in names)


def _field_names(kind: Any) -> Sequence[str]:
    if issubclass(kind, msgspec.Struct):
        return tuple(kind.__struct_fields__)
    return [item.name for item in dataclasses.fields(kind) if item.init]


def fill_section(kind: type[Any], plugin: str, settings: Mapping[str, PluginSetting]) -> Any:
    """A section with these values, and defaults for the rest.

    Raises:
        ConfigError: an unknown field, with the nearest, or a value of another type; says where it was written.
        PluginError: the type can't be a section.
    """
    fields = {item.name: item for item in section_fields(kind)}
    values = {}
    for name, setting in settings.items():
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(fields) or 'none'}"
            raise ConfigError(f"{setting.label}: plugin {plugin} has no setting {name[:_MAX_SHOWN]!r}; {hint}")
        values[name] = _typed(setting, fields[name].hint)
    try:
        return kind(**values)
    except Exception as error:  # a plugin's own check
        written = ", ".join(setting.label for setting in settings.values())
        raise ConfigError(f"{written}: plugin {plugin} refuses its settings: {error}") from error


def restore_section(kind: type[Any], plain: Mapping[str, Any]) -> Any:
    """A section as another process filled it.

    Raises:
        PluginError: this process has another type under that name.
    """
    try:
        return msgspec.convert(dict(plain), kind)
    except msgspec.ValidationError as error:
        raise PluginError(f"{kind.__qualname__} isn't the section that the parent process filled: {error}") from error


def _typed(setting: PluginSetting, hint: Any) -> Any:
    try:
        if setting.is_text:
            return _from_text(setting.value, hint)
        return msgspec.convert(setting.value, hint, strict=True)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ConfigError(f"{setting.label}: {error}") from None
    except RecursionError:
        raise ConfigError(f"{setting.label} is nested too deeply") from None


def _from_text(text: str, hint: Any) -> Any:
    """A number, a switch or a text as it stands; anything else in JSON."""
    try:
        return msgspec.convert(text, hint, strict=False)
    except msgspec.ValidationError:
        if not text.lstrip().startswith(("[", "{")):
            raise
    return msgspec.json.decode(text, type=hint)
