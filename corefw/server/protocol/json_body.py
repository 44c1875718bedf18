"""Request bodies: strict JSON, nothing silent in it, and every refusal quick, small and free of the input."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from corefw.errors import RequestError

__all__ = ["MAX_DEPTH", "parse_object", "shown_name"]

MAX_DEPTH = 32
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
# Only such escapes can bring in a lone surrogate or a NUL: raw ones are refused by UTF-8 and by JSON themselves.
_SUSPICIOUS_ESCAPE = re.compile(r"\\u(?:[dD][89a-fA-F]|0000)")


def parse_object(body: bytes) -> dict[str, Any]:
    """Decode a JSON object.

    Raises:
        RequestError: not UTF-8, not JSON (``NaN`` and ``Infinity`` aren't), nested deeper than ``MAX_DEPTH``, a field
            given twice, a number out of range, text with NUL or lone surrogates, or not an object.
    """
    text = _decode(body)
    try:
        data = json.loads(
            text, object_pairs_hook=_unique_names, parse_constant=_refuse_constant, parse_float=_finite_float
        )
    except json.JSONDecodeError as error:
        raise RequestError(f"the body is not valid JSON (at character {error.pos})") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # an integer with more digits than Python converts
        raise RequestError("the body has a number with too many digits") from None
    if not isinstance(data, dict):
        raise RequestError("the body must be a JSON object")
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(data)
    if _SUSPICIOUS_ESCAPE.search(text):
        _check_text(data)
    return data


def shown_name(name: str) -> str:
    """A field's name as errors may repeat it: short and plain, else a placeholder."""
    return name if _PLAIN_NAME.fullmatch(name) else "(unprintable)"


def _decode(body: bytes) -> str:
    if not body:
        raise RequestError("the body is empty; send a JSON object")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not valid UTF-8 (at byte {error.start})") from None


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise RequestError("a field is given twice", param=shown_name(twice))
    return data


def _refuse_constant(_: str) -> None:
    raise RequestError("the body is not valid JSON: NaN and Infinity are not numbers there")


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise RequestError("the body has a number out of range")
    return value


def _too_deep() -> RequestError:
    return RequestError(f"the body is nested more than {MAX_DEPTH} levels deep")


def _check_depth(data: dict[str, Any]) -> None:
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH):
        children = (c for item in level for c in (item.values() if isinstance(item, dict) else item))
        level = [child for child in children if isinstance(child, dict | list)]
        if not level:
            return
    raise _too_deep()


def _check_text(data: dict[str, Any]) -> None:
    for path, text in _texts(data):
        if "\0" in text:
            raise RequestError("text must not contain NUL characters", param=path)
        if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
            raise RequestError("text must not contain lone surrogates", param=path)


def _texts(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every string with its path, names of fields included."""
    stack: list[tuple[str, Any]] = [("", data)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, str):
            yield path, item
        elif isinstance(item, list):
            stack.extend((f"{path}[{i}]", child) for i, child in enumerate(item))
        elif isinstance(item, dict):
            for name, child in item.items():
                yield path, name
                stack.append((f"{path}.{shown_name(name)}" if path else shown_name(name), child))
