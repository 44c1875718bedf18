"""Typed access to the metadata of a GGUF file, with errors that name the file and the key."""

from __future__ import annotations

from typing import NoReturn, TypeVar

import numpy as np

from corefw.errors import ModelFormatError
from corefw.models.loading.gguf_file import GGUFFile

__all__ = ["GGUFValues", "shortest_float"]

T = TypeVar("T")


def shortest_float(value: float) -> float:
    """The float that a person wrote before it was stored in 32 bits (1e-05, not 9.999999747378752e-06)."""
    return float(str(np.float32(value)))


class GGUFValues:
    """Values of one file under a prefix.

    Args:
        file: the file.
        prefix: stands before every key that is asked for, with its dot.
    """

    def __init__(self, file: GGUFFile, prefix: str) -> None:
        self._file = file
        self._prefix = prefix

    def fail(self, key: str, what: str) -> NoReturn:
        """Raise the error of a value that can't be used."""
        raise ModelFormatError(
            f"{self._file.path}: metadata key {self._prefix}{key} {what}; use another file or convert the model again"
        )

    def integer(self, key: str, *, low: int = 1) -> int:
        """A whole number of at least ``low`` that must be there."""
        value = self.optional_integer(key, low=low)
        if value is None:
            self.fail(key, "is missing")
        return value

    def optional_integer(self, key: str, *, low: int = 1) -> int | None:
        """The same, or None when there is no such key."""
        value = self._file.metadata.get(self._prefix + key)
        if value is None:
            return None
        if isinstance(value, list):
            return self._same_in_all_layers(key, value, low)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            self.fail(key, f"is {str(value)[:40]!r}, expected a whole number from {low}")
        return value

    def number(self, key: str) -> float:
        """A positive number that must be there."""
        value = self.optional_number(key)
        if value is None:
            self.fail(key, "is missing")
        return value

    def optional_number(self, key: str, *, low: float = 0.0, high: float = 1e12) -> float | None:
        """The same, or None when there is no such key; from ``low`` up to ``high``, and never 0."""
        value = self._file.metadata.get(self._prefix + key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 and low <= value <= high):
            least = f"from {low:g}" if low else "above 0"
            self.fail(key, f"is {str(value)[:40]!r}, expected a positive number {least} up to {high:g}")
        return shortest_float(value)

    def optional_text(self, key: str) -> str | None:
        """A string, or None when there is no such key."""
        value = self._file.metadata.get(self._prefix + key)
        if value is not None and not isinstance(value, str):
            self.fail(key, f"is {str(value)[:40]!r}, expected a string")
        return value

    def optional_switches(self, key: str) -> list[bool] | None:
        """A list of switches, or None when there is no such key or it holds a single value."""
        value = self._file.metadata.get(self._prefix + key)
        if not isinstance(value, list):
            return None
        if not all(isinstance(item, bool) for item in value):
            self.fail(key, "is a list, but not one of switches")
        return [bool(item) for item in value]

    def _same_in_all_layers(self, key: str, values: list[T], low: int) -> int:
        first = values[0] if values else None
        if any(value != first for value in values):
            self.fail(key, "differs between layers, which isn't supported")
        if isinstance(first, bool) or not isinstance(first, int) or first < low:
            self.fail(key, f"is {str(first)[:40]!r} in every layer, expected a whole number from {low}")
        return first
