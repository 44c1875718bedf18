"""The settings of a KV connector: JSON on the command line, checked against what the connector declares."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Any

import msgspec

from corefw.errors import ConfigError

__all__ = ["typed_options"]

_FLAG = "--kv-connector-config"


def typed_options(text: str | None, options_type: type | None) -> Any:
    """The settings in ``text``, a JSON object; None has none of them.

    Args:
        text: as ``--kv-connector-config`` has it.
        options_type: a dataclass or msgspec struct, whose instance is returned; None: the mapping itself.

    Raises:
        ConfigError: it is no JSON object, a key is unknown, or a value isn't what the connector takes.
    """
    try:
        raw = msgspec.json.decode(text) if text is not None else {}
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f'{_FLAG} isn\'t JSON ({error}); write an object such as {{"key": "value"}}') from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{_FLAG} must be a JSON object, got {type(raw).__name__}")
    if options_type is None:
        return raw
    _refuse_unknown(raw, _names(options_type))
    try:
        return msgspec.convert(raw, options_type)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise ConfigError(f"{_FLAG}: {error}") from None


def _names(options_type: type) -> list[str]:
    if dataclasses.is_dataclass(options_type):
        return [field.name for field in dataclasses.fields(options_type)]
    return [field.encode_name for field in msgspec.structs.fields(options_type)]


def _refuse_unknown(raw: Iterable[str], names: list[str]) -> None:
    for key in raw:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(names) or 'none'}"
            raise ConfigError(f"{_FLAG} has an unknown key {key[:60]!r}; {hint}")
