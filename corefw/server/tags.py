"""Tags of a request: what clients say about it, for figures alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corefw.errors import RequestError

__all__ = ["TAGS_SCHEMA", "check_tags"]

MAX_TAGS = 16
MAX_KEY_CHARS = 64
MAX_VALUE_CHARS = 512

TAGS_SCHEMA: dict[str, Any] = {
    "maxProperties": MAX_TAGS,
    "propertyNames": {"minLength": 1, "maxLength": MAX_KEY_CHARS},
    "additionalProperties": {"type": "string", "maxLength": MAX_VALUE_CHARS},
}


def check_tags(tags: Mapping[str, str] | None, *, param: str) -> Mapping[str, str]:
    """The tags, within their bounds.

    Raises:
        RequestError: too many, or too long.
    """
    if tags is None:
        return {}
    if len(tags) > MAX_TAGS:
        raise RequestError(f"{param} must have at most {MAX_TAGS} members, got {len(tags)}", param=param)
    if any(not 1 <= len(key) <= MAX_KEY_CHARS for key in tags):
        raise RequestError(f"keys of {param} must have 1 to {MAX_KEY_CHARS} characters", param=param)
    if any(len(value) > MAX_VALUE_CHARS for value in tags.values()):
        raise RequestError(f"values of {param} must have at most {MAX_VALUE_CHARS} characters", param=param)
    return tags
