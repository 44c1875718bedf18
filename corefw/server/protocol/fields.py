"""From a JSON object to a request struct: every field is typed, known and supported, or the request is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from corefw.errors import RequestError
from corefw.plugin_system.names import suggestion
from corefw.server.protocol.json_body import shown_name

__all__ = ["RequestShape", "json_kind"]

T = TypeVar("T", bound=msgspec.Struct)

_EXPECTED = re.compile(r"Expected `([^`]+)`(?:, got `([^`]+)`)?$")
# The range is the struct's own.
_OUT_OF_RANGE = re.compile(r"Expected `([^`]+)` (\S.*)$", re.DOTALL)
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`$", re.DOTALL)
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestShape(Generic[T]):
    """What a route accepts. ``RequestShape(struct=MyRequest)`` takes its fields and no other.

    Attributes:
        struct: the fields it understands.
        neutral: fields of the API that it doesn't support yet, with the values (besides null) that ask for nothing.
        ignored: fields of the API that never change an answer.
        needed: the route's own parser refuses a request that has none of these; schemas say so.
    """

    struct: type[T]
    neutral: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    needed: tuple[str, ...] = ()

    def decode(self, data: dict[str, Any]) -> T:
        """Check every field of ``data`` and build the struct.

        Raises:
            RequestError: naming the field, what is wrong with it and what is accepted.
        """
        for name in data.keys() - set(self.struct.__struct_fields__) - self.ignored:
            self._check_neutral(name, data[name])
        try:
            return msgspec.convert(data, self.struct)
        except msgspec.ValidationError as error:
            raise _readable(str(error)) from None

    def _check_neutral(self, name: str, value: object) -> None:
        if name not in self.neutral:
            raise self._unknown(name)
        accepted = self.neutral[name]
        if value is not None and not any(_same(value, neutral) for neutral in accepted):
            raise RequestError(_unsupported(name, accepted), param=name, code="unsupported_parameter")

    def _unknown(self, name: str) -> RequestError:
        hint = suggestion(name, [*self.struct.__struct_fields__, *self.neutral, *self.ignored])
        shown = shown_name(name)
        return RequestError(f"unknown field {shown}; {hint}", param=shown, code="unknown_parameter")


def json_kind(value: object) -> str:
    """What a decoded JSON value is, in words."""
    for kinds, words in (
        ((bool,), "a boolean"),
        ((int, float), "a number"),
        ((str,), "a string"),
        ((list,), "a list"),
        ((dict,), "an object"),
    ):
        if isinstance(value, kinds):
            return words
    return "null"


def _same(value: object, neutral: object) -> bool:
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _unsupported(name: str, neutral: tuple[object, ...]) -> str:
    accepted = ", ".join(msgspec.json.encode(value).decode() for value in neutral)
    hint = f"leave it out or send {accepted}" if accepted else "leave it out"
    return f"{name} is not supported by this server; {hint}"


def _readable(message: str) -> RequestError:
    """msgspec's message in the words of the API, without anything that the client sent."""
    found = _PATH.search(message)
    path = found.group(1)[:200] if found else ""
    message = _PATH.sub("", message)
    if unknown := _UNKNOWN.match(message):
        name = shown_name(unknown.group(1))
        path = f"{path}.{name}" if path else name
        return RequestError(f"unknown field {path}", param=path, code="unknown_parameter")
    if missing := _MISSING.match(message):
        path = f"{path}.{missing.group(1)}" if path else missing.group(1)
        return RequestError(f"{path} is required", param=path)
    if expected := _EXPECTED.match(message):
        got = _KINDS.get(expected.group(2) or "", "something else")
        return RequestError(f"{path or 'the body'} must be {_words(expected.group(1))}, got {got}", param=path or None)
    if out := _OUT_OF_RANGE.match(message):
        return RequestError(f"{path or 'the body'} must be {_words(out.group(1))} {out.group(2)}", param=path or None)
    return RequestError(f"{path or 'a field'} has a value out of range or of the wrong type", param=path or None)


def _words(kinds: str) -> str:
    return " or ".join(_KINDS.get(kind, "another value") for kind in kinds.split(" | "))
