"""Checks every option of a section by its type and what its field declares."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
import unicodedata
from typing import Any

from corefw.errors import ConfigError

__all__ = ["MAX_INT", "MAX_TEXT", "check_api_key", "check_option", "check_options"]

MAX_INT = 2**63 - 1  # what a message can carry
MAX_TEXT = 4096
_MAX_SHOWN = 40
# Control characters, halves of surrogate pairs (which can't be encoded), separators of lines and paragraphs.
_UNPRINTABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})
_KINDS = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}


def check_options(section: Any) -> None:
    """Check each field of a section by its declared type; numbers by ``low`` and ``high``, texts by ``choices``.

    Raises:
        ConfigError: names the flag, the value and what is accepted.
    """
    owner: Any = type(section)
    for item, _, _ in _fields(owner):
        label = item.metadata.get("label") or f"--{item.name.replace('_', '-')}"
        check_option(owner, item.name, getattr(section, item.name), label)


def check_option(owner: Any, name: str, value: Any, label: str) -> None:
    """Check a value for one field of a section.

    Raises:
        ConfigError: begins with ``label`` and says what is accepted.
    """
    item, kind, optional = next(found for found in _fields(owner) if found[0].name == name)
    if value is None and optional:
        return
    if typing.get_origin(kind) is tuple:
        _check_texts(label, value, item.metadata)
    else:
        _check_value(label, value, kind, item.metadata)


def check_api_key(label: str, key: str) -> None:
    """Refuse a key that no client could send in a header; the message doesn't show it.

    Raises:
        ConfigError: the key can't be matched.
    """
    if not key:
        raise ConfigError(f"{label} must not be empty; leave it out to serve without a key")
    if key != key.strip() or not key.isascii() or not key.isprintable() or len(key) > MAX_TEXT:
        raise ConfigError(
            f"{label} can't be sent in a header; use 1 to {MAX_TEXT} printable ASCII characters without blanks around"
        )


@functools.cache
def _fields(owner: type[Any]) -> tuple[tuple[dataclasses.Field[Any], Any, bool], ...]:
    """Field, plain type, whether it may be None; without what only other code sets."""
    hints = typing.get_type_hints(owner)
    found = []
    for item in dataclasses.fields(owner):
        hint = hints[item.name]
        optional = isinstance(hint, types.UnionType)
        kind = next(part for part in hint.__args__ if part is not types.NoneType) if optional else hint
        if kind in _KINDS or kind == tuple[str, ...]:
            found.append((item, kind, optional))
    return tuple(found)


def _check_value(label: str, value: Any, kind: Any, metadata: typing.Mapping[str, Any]) -> None:
    accepted: Any = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{label} must be {_KINDS[kind]}, got {type(value).__name__}")
    if kind in (int, float):
        _check_number(label, value, metadata.get("low", 0), metadata.get("high", MAX_INT))
    elif kind is str:
        _check_text(label, value, metadata)


def _check_number(label: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # NaN is not either
        raise ConfigError(f"{label} must be in [{low}, {high}], got {_shown(value)}")


def _check_text(label: str, value: str, metadata: typing.Mapping[str, Any]) -> None:
    choices = metadata.get("choices")
    if choices and value not in choices:
        raise ConfigError(f"{label} {value[:_MAX_SHOWN]!r} is unknown; use one of {', '.join(choices)}")
    if not value and not metadata.get("may_be_empty"):
        raise ConfigError(f"{label} must not be empty; leave it out instead")
    if metadata.get("free_text"):
        if any(unicodedata.category(char) == "Cs" for char in value):
            raise ConfigError(f"{label} isn't valid Unicode; write it as UTF-8")
        return
    if len(value) > MAX_TEXT:
        raise ConfigError(f"{label} must have at most {MAX_TEXT} characters, got {len(value)}")
    if any(unicodedata.category(char) in _UNPRINTABLE for char in value):
        raise ConfigError(f"{label} {value[:_MAX_SHOWN]!r} has control characters; use printable ones")


def _check_texts(label: str, value: Any, metadata: typing.Mapping[str, Any]) -> None:
    if not isinstance(value, tuple) or not all(isinstance(text, str) for text in value):
        raise ConfigError(f"{label} must be a list of texts, got {type(value).__name__}")
    if metadata.get("secret"):  # whose own check doesn't show it
        return
    for text in value:
        _check_text(label, text, metadata)
    twice = next((text for text in value if value.count(text) > 1), None)
    if twice is not None and metadata.get("unique"):
        raise ConfigError(f"{label} {twice[:_MAX_SHOWN]!r} is given twice")


def _shown(value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return repr(value) if abs(value) < 2**80 else f"{'-' if value < 0 else ''}2**80 or beyond"
