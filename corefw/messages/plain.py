"""Plain data: what may cross a process border as it is, bounded and checked, and how news of it are joined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corefw.messages.request import PlainDict

__all__ = ["MAX_DEPTH", "MAX_VALUES", "joined_news", "plain_copy", "plain_problem", "valid_text"]

MAX_DEPTH = 16
MAX_VALUES = 1_000_000

_MAX_INT = 2**63
_LEAVES = (bool, float, bytes, type(None))


def plain_problem(value: object, *, max_depth: int = MAX_DEPTH, max_values: int = MAX_VALUES) -> str | None:
    """None when a value is plain data, else what is wrong with it, in words that follow its name.

    Plain are None, booleans, numbers (integers of 64 bits), valid texts, bytes, lists and dicts with texts as keys.

    Args:
        value: whatever a plugin or a client gave.
        max_depth: lists and dicts within each other.
        max_values: numbers and other values, and 8 bytes of a text or of bytes count as one.
    """
    left = max_values
    level: list[object] = [value]
    for _ in range(max_depth + 1):
        deeper: list[object] = []
        for item in level:
            left -= 1
            if isinstance(item, str | bytes):
                left -= len(item) // 8
            if problem := _problem(item, deeper):
                return problem
            if left < len(deeper):
                return f"is larger than {max_values} values"
        if not deeper:
            return None
        level = deeper
    return f"is nested deeper than {max_depth} levels"


def _problem(item: object, deeper: list[object]) -> str | None:
    kind = type(item)
    if kind in _LEAVES:
        return None
    if kind is int:
        return None if -_MAX_INT <= item < _MAX_INT else "has a number beyond 64 bits"  # type: ignore[operator]
    if kind is str:
        return None if _is_text(item) else "has a text that isn't valid Unicode"
    if isinstance(item, list | tuple):
        deeper += item
        return None
    if isinstance(item, Mapping):
        if not all(_is_text(key) for key in item):
            return "has a key that isn't a text"
        deeper += item.keys()
        deeper += item.values()
        return None
    return f"has a {kind.__name__}, which isn't plain data"


def _is_text(item: object) -> bool:
    return isinstance(item, str) and (item.isascii() or not any("\ud800" <= char <= "\udfff" for char in item))


def plain_copy(value: Any) -> Any:
    """Plain data as lists and dicts of their own, so that whoever gave them may go on changing theirs."""
    if isinstance(value, list | tuple):
        return [plain_copy(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain_copy(item) for key, item in value.items()}
    return value


def valid_text(text: str) -> str:
    """The text as it can be sent: what isn't valid Unicode becomes question marks."""
    return text if _is_text(text) else text.encode("utf-8", "replace").decode()


def joined_news(first: PlainDict, second: PlainDict) -> PlainDict:
    """Two pieces of news that follow each other, as one: lists follow each other, dicts are joined key by key, and of
    anything else the later stays."""
    if not first or not second:
        return first or second
    joined = dict(first)
    for key, value in second.items():
        joined[key] = _joined(joined[key], value) if key in joined else value
    return joined


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, dict) and isinstance(second, dict):
        return joined_news(first, second)
    if isinstance(first, list) and isinstance(second, list):
        return [*first, *second]
    return second
