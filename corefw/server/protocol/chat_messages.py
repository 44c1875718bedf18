"""The ``messages`` field of chat completions."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from corefw.errors import RequestError
from corefw.frontend.chat_messages import MODALITIES, refused_part
from corefw.server.protocol.fields import json_kind
from corefw.server.protocol.json_body import shown_name

__all__ = ["MESSAGES_SCHEMA", "parse_messages"]

MAX_MESSAGES = 4096
_ROLES = ("system", "developer", "user", "assistant", "tool")
# Fields that clients send back from earlier answers; empty ones say nothing.
_EMPTY_ONLY = ("annotations", "audio", "function_call", "refusal", "tool_calls")
_TEXT_FIELDS = ("name", "reasoning_content", "tool_call_id")

_PART_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
_MESSAGE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "role": {"enum": list(_ROLES)},
        "content": {
            "description": "A text, whole or in parts.",
            "anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": _PART_SCHEMA}],
        },
        **{name: {"type": ["string", "null"]} for name in _TEXT_FIELDS},
        **{name: {"enum": [None, [], ""], "description": "Not supported."} for name in _EMPTY_ONLY},
    },
    "required": ["role", "content"],
    "additionalProperties": False,
}
# What ``parse_messages`` reads.
MESSAGES_SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_MESSAGES,
    "items": _MESSAGE_SCHEMA,
}


def parse_messages(value: object, modalities: Set[str] = frozenset()) -> list[dict[str, Any]]:
    """Read raw ``messages``; content is text, given as a string or as text parts.

    Args:
        value: as the client sent it.
        modalities: what parts there may be besides text; they are left as they are, for whoever takes them.

    Raises:
        RequestError: with the path of what is wrong, as the client wrote it.
    """
    if not isinstance(value, list):
        raise RequestError(f"messages must be a list, got {json_kind(value)}", param="messages")
    if not 1 <= len(value) <= MAX_MESSAGES:
        raise RequestError(f"messages must have 1 to {MAX_MESSAGES} entries, got {len(value)}", param="messages")
    return [_message(item, f"messages[{i}]", modalities) for i, item in enumerate(value)]


def _message(item: object, path: str, modalities: Set[str]) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise RequestError(f"{path} must be an object, got {json_kind(item)}", param=path)
    if item.get("role") not in _ROLES:
        raise RequestError(f"{path}.role must be one of {', '.join(_ROLES)}", param=f"{path}.role")
    content = _content(item.get("content"), f"{path}.content", modalities)
    message: dict[str, Any] = {"role": item["role"], "content": content}
    for name, field in item.items():
        if name in message or field is None:
            continue
        if name in _TEXT_FIELDS:
            message[name] = _string(field, f"{path}.{name}")
        elif name not in _EMPTY_ONLY:
            raise RequestError(f"unknown field {path}.{shown_name(name)}", param=f"{path}.{shown_name(name)}")
        elif field not in ([], ""):
            raise RequestError(f"{path}.{name} is not supported by this server; leave it out", param=f"{path}.{name}")
    return message


def _content(value: object, path: str, modalities: Set[str]) -> str | list[dict[str, Any]]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise RequestError(f"{path} must be a string or a list of parts, got {json_kind(value)}", param=path)
    if not value:
        raise RequestError(f"{path} must have at least one part", param=path)
    return [_part(part, f"{path}[{i}]", modalities) for i, part in enumerate(value)]


def _part(part: object, path: str, modalities: Set[str]) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise RequestError(f"{path} must be an object, got {json_kind(part)}", param=path)
    kind = part.get("type")
    if isinstance(kind, str) and kind in MODALITIES:
        if MODALITIES[kind] in modalities:
            return part
        raise RequestError(f"{path}.type: {refused_part(kind, modalities)}", param=f"{path}.type")
    if kind != "text":
        raise RequestError(f"{path}.type must be text", param=f"{path}.type")
    for name in part:
        if name not in ("type", "text"):
            raise RequestError(f"unknown field {path}.{shown_name(name)}", param=f"{path}.{shown_name(name)}")
    return {"type": "text", "text": _string(part.get("text"), f"{path}.text")}


def _string(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{path} must be a string, got {json_kind(value)}", param=path)
    return value
