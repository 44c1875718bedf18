"""Reads typed, bounded values of a model's JSON configuration; an error names file, key, value and what is accepted.

Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

from corefw.errors import ModelFormatError
from corefw.models.loading.json_file import read_json_object

__all__ = ["ConfigReader"]

_MAX_CONFIG_BYTES = 16 << 20
_MAX_SHOWN = 40
_MAX_TOKEN_IDS = 1024
_MAX_NUMBERS = 65536
_TOKEN_ID_END = 2**31


class ConfigReader:
    """One JSON object of a configuration file.

    Args:
        path: the file, for errors.
        values: the object.
        prefix: where the object lies in the file (``rope_scaling.``), for errors.
    """

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path = path
        self.values = values
        self._prefix = prefix

    @classmethod
    def of_file(cls, path: Path) -> ConfigReader:
        """Read a file.

        Raises:
            ModelFormatError: missing, no regular file, too large, or no JSON object.
        """
        return cls(path, read_json_object(path, max_bytes=_MAX_CONFIG_BYTES))

    def fail(self, key: str, what: str) -> NoReturn:
        """Raise ``key ... {what}`` with the remedy."""
        where = f"{self.path}: key {self._prefix + key[:80]!r}"
        raise ModelFormatError(f"{where} {what}; fetch the model again or correct the file")

    def refuse(self, key: str, accepted: str) -> NoReturn:
        """Raise that the value of ``key`` isn't what is accepted."""
        if key not in self.values:
            self.fail(key, f"is missing, expected {accepted}")
        self.fail(key, f"is {_shown(self.values[key])}, expected {accepted}")

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def whole(self, key: str, high: int, *, low: int = 1) -> int:
        """A whole number in [low, high]."""
        value = self.values.get(key)
        if type(value) is not int or not low <= value <= high:
            self.refuse(key, f"a whole number in [{low}, {high}]")
        return value

    def number(self, key: str, *, low: float = 0.0, high: float = math.inf, low_open: bool = True) -> float:
        """A finite number above (or from) ``low``, up to ``high``."""
        value = self.values.get(key)
        if not _is_finite(value) or value < low or (low_open and value == low) or value > high:
            least = f"above {low:g}" if low_open else f"from {low:g}"
            self.refuse(key, f"a finite number {least}" + ("" if high == math.inf else f" up to {high:g}"))
        return value

    def numbers(self, key: str, *, low: float, high: float) -> list[float]:
        """A list of finite numbers in [low, high]."""
        values = self.values.get(key)
        if not isinstance(values, list) or not 1 <= len(values) <= _MAX_NUMBERS:
            self.refuse(key, f"a list of 1 to {_MAX_NUMBERS} finite numbers from {low:g} up to {high:g}")
        for index, value in enumerate(values):
            if not _is_finite(value) or not low <= value <= high:
                self.fail(
                    f"{key}[{index}]", f"is {_shown(value)}, expected a finite number from {low:g} up to {high:g}"
                )
        return values

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self.values.get(key)
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value

    def choice(self, key: str, known: Collection[str]) -> str:
        """One of the known words."""
        value = self.values.get(key)
        if not isinstance(value, str) or value not in known:
            self.refuse(key, f"one of {', '.join(sorted(known))}")
        return value

    def child(self, key: str) -> ConfigReader:
        """The object under a key."""
        value = self.values.get(key)
        if not isinstance(value, dict):
            self.refuse(key, "an object or null")
        return ConfigReader(self.path, value, f"{self._prefix}{key}.")

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them; nothing where the key is missing or null."""
        value = self.values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if len(ids) > _MAX_TOKEN_IDS:
            self.refuse(key, f"at most {_MAX_TOKEN_IDS} token ids")
        for token_id in ids:
            if type(token_id) is not int or not 0 <= token_id < _TOKEN_ID_END:
                self.refuse(key, f"a token id (a whole number in [0, {_TOKEN_ID_END})) or a list of them")
        return tuple(dict.fromkeys(ids))


def _is_finite(value: Any) -> TypeGuard[int | float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def _shown(value: Any) -> str:
    """Bounded, and never deeper than one level: a value may be nested as deep as the JSON parser allows."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return f"an object of {len(value)} entries"
    if isinstance(value, list):
        if len(value) > 4 or any(isinstance(item, list | dict) for item in value):
            return f"a list of {len(value)} entries"
        return f"[{', '.join(_shown(item) for item in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value[:_MAX_SHOWN]) if isinstance(value, str) else repr(value)[:_MAX_SHOWN]
    return text if len(text) <= _MAX_SHOWN + 2 else text[:_MAX_SHOWN] + "…"
