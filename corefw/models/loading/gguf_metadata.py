"""The key-value part of a GGUF file: a checked cursor over its bytes, and a mapping that decodes arrays when asked.

A vocabulary is hundreds of thousands of strings; opening a file only steps over it. No length is believed before it was
compared with what is left of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from corefw.errors import ModelFormatError

__all__ = ["Cursor", "Metadata", "MetadataValue"]

MetadataValue = int | float | bool | str | list["MetadataValue"]

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
_SCALAR_STRUCTS = {code: struct.Struct(layout) for code, layout in _SCALARS.items()}
_NUMPY_DTYPES = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "|b1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_U64 = struct.Struct("<Q")
_MAX_ARRAY_DEPTH = 4
_MAX_KEY_BYTES = 65535  # the specification's limit


@dataclass(frozen=True, slots=True)
class _LazyArray:
    """An array that was stepped over: its element type, number of elements, and where they begin."""

    element: int
    count: int
    start: int


class Cursor:
    """Reads little-endian values from the front of a buffer; every error names the file."""

    def __init__(self, view: memoryview, path: str, position: int = 0) -> None:
        self.view = view
        self.path = path
        self.position = position

    def fail(self, what: str) -> NoReturn:
        """Raise the error of a damaged file."""
        raise ModelFormatError(f"{self.path}: {what}; the file is damaged or incomplete, fetch it again")

    def take(self, layout: struct.Struct, what: str) -> int | float:
        """One value."""
        self._need(layout.size, what)
        value: int | float = layout.unpack_from(self.view, self.position)[0]
        self.position += layout.size
        return value

    def u32(self, what: str) -> int:
        """One unsigned 32-bit number."""
        return int(self.take(_SCALAR_STRUCTS[4], what))

    def u64(self, what: str) -> int:
        """One unsigned 64-bit number."""
        return int(self.take(_U64, what))

    def count(self, what: str, *, smallest: int) -> int:
        """A number of items that take at least ``smallest`` bytes each; refused if they can't be in the file."""
        number = self.u64(what)
        left = len(self.view) - self.position
        if number * smallest > left:
            self.fail(f"{what} is {number}, which {left} remaining bytes can't hold")
        return number

    def string(self, what: str, *, longest: int | None = None) -> str:
        """A length and that many bytes of UTF-8."""
        length = self.count(f"length of {what}", smallest=1)
        if longest is not None and length > longest:
            self.fail(f"length of {what} is {length}, more than the {longest} allowed")
        raw = bytes(self.view[self.position : self.position + length])
        self.position += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} isn't UTF-8")

    def scalar(self, code: int, what: str) -> MetadataValue:
        """A value of a type that isn't an array."""
        if code == _STRING:
            return self.string(what)
        layout = _SCALAR_STRUCTS.get(code)
        if layout is None:
            self.fail(f"{what} has the unknown value type {code}")
        value = self.take(layout, what)
        if code != _BOOL:
            return value
        if value not in (0, 1):
            self.fail(f"{what} is a switch, but its value is {value}")
        return bool(value)

    def skip_array(self, what: str, depth: int = 1) -> _LazyArray:
        """Step over an array and say where it lies."""
        if depth > _MAX_ARRAY_DEPTH:
            self.fail(f"{what} nests arrays deeper than {_MAX_ARRAY_DEPTH}")
        element = self.u32(f"element type of {what}")
        layout = _SCALAR_STRUCTS.get(element)
        if layout is not None:
            count = self.count(f"length of {what}", smallest=layout.size)
            found = _LazyArray(element, count, self.position)
            self.position += count * layout.size
        elif element == _STRING:
            count = self.count(f"length of {what}", smallest=8)
            found = _LazyArray(element, count, self.position)
            self._skip_strings(count, what)
        elif element == _ARRAY:
            count = self.count(f"length of {what}", smallest=12)
            found = _LazyArray(element, count, self.position)
            for _ in range(count):
                self.skip_array(what, depth + 1)
        else:
            self.fail(f"{what} has the unknown element type {element}")
        return found

    def _skip_strings(self, count: int, what: str) -> None:
        view, position, unpack = self.view, self.position, _U64.unpack_from
        last = len(view) - 8
        for index in range(count):
            if position > last:
                self.fail(f"{what} ends after {index} of {count} strings")
            position += 8 + unpack(view, position)[0]
        if position > len(view):
            self.fail(f"{what} ends inside its last string")
        self.position = position

    def _need(self, num_bytes: int, what: str) -> None:
        if self.position + num_bytes > len(self.view):
            self.fail(f"ends before {what}")


class Metadata(Mapping[str, MetadataValue]):
    """The metadata of a GGUF file: scalars, strings and plain lists. Lists are decoded at their first use and kept."""

    def __init__(self, cursor: Cursor, count: int) -> None:
        self._view = cursor.view
        self._path = cursor.path
        self._values: dict[str, MetadataValue | _LazyArray] = {}
        for _ in range(count):
            key = cursor.string("a metadata key", longest=_MAX_KEY_BYTES)
            if key in self._values:
                cursor.fail(f"metadata key {key[:80]!r} stands twice")
            code = cursor.u32(f"type of {key[:80]}")
            what = f"metadata value {key[:80]}"
            self._values[key] = cursor.skip_array(what) if code == _ARRAY else cursor.scalar(code, what)

    def __getitem__(self, key: str) -> MetadataValue:
        value = self._values[key]
        if isinstance(value, _LazyArray):
            value = self._values[key] = self._decode(value, key)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def length(self, key: str) -> int | None:
        """Elements of an array without decoding it; None when there is no array of that name."""
        value = self._values.get(key)
        if isinstance(value, _LazyArray):
            return value.count
        return len(value) if isinstance(value, list) else None

    def _decode(self, array: _LazyArray, key: str) -> list[MetadataValue]:
        if array.element == _STRING:
            return self._decode_strings(array, key)
        if array.element == _ARRAY:
            cursor = Cursor(self._view, self._path, array.start)
            return [self._decode(cursor.skip_array(key), key) for _ in range(array.count)]
        raw = np.frombuffer(self._view, _NUMPY_DTYPES[array.element], array.count, array.start)
        values: list[MetadataValue] = raw.tolist()
        return values

    def _decode_strings(self, array: _LazyArray, key: str) -> list[MetadataValue]:
        view, position, unpack = self._view, array.start, _U64.unpack_from
        strings: list[MetadataValue] = []
        try:
            for _ in range(array.count):
                start = position + 8
                position = start + unpack(view, position)[0]
                strings.append(str(view[start:position], "utf-8"))
        except UnicodeDecodeError as error:
            raise ModelFormatError(
                f"{self._path}: string {len(strings)} of {key} isn't UTF-8; the file is damaged, fetch it again"
            ) from error
        return strings
