"""Settings that are a mapping: as JSON on a command line, in a file, or as Python has them; kept as JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corefw.config.file import plain_data
from corefw.config.regular_file import read_regular_text
from corefw.errors import ConfigError

__all__ = ["mapping_text", "read_mapping"]

_MAX_BYTES = 2**18
_MAX_VALUES = 10_000


def mapping_text(value: Mapping[str, Any], label: str) -> str:
    """The mapping as JSON.

    Raises:
        ConfigError: it holds what JSON hasn't.
    """
    try:
        return json.dumps(value, default=_plain)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{label} can't be written as JSON: {error}") from None


def read_mapping(text: str, label: str) -> dict[str, Any]:
    """What a text says: a JSON object, or the path of a JSON or YAML file with one.

    Raises:
        ConfigError: it isn't one; begins with ``label``.
    """
    value = _parsed(text, label) if text.lstrip().startswith(("{", "[")) else _from_file(Path(text), label)
    if not isinstance(value, dict):
        raise ConfigError(f"{label} must be a mapping, got {type(value).__name__}")
    return value


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} isn't plain data")


def _parsed(text: str, label: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{label} isn't JSON: {error}") from None


def _from_file(path: Path, label: str) -> Any:
    shown = f"{label} {str(path)[:200]!r}"
    try:
        text = read_regular_text(path.expanduser(), _MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"{shown} is neither JSON nor a file that can be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{shown} isn't UTF-8 text") from None
    if path.suffix == ".json":
        return _parsed(text, shown)
    import yaml  # here: only who has such a file waits for it

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        raise ConfigError(f"{shown} isn't YAML") from None
    return {} if root is None else plain_data(root, shown, itertools.count(_MAX_VALUES, -1))
