"""Chat messages as clients send them, checked and brought into the form that templates expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corefw.errors import RequestError

__all__ = ["template_messages"]

_MODALITIES = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
    "file": "file",
    "input_file": "file",
}


def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose content is one string; lists of text parts are joined by line breaks.

    Raises:
        RequestError: no messages, or one is malformed; ``param`` is its path.
    """
    if not messages:
        raise RequestError("messages is empty; send at least one message", param="messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: Any, path: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError("a message must be an object with role and content", param=path)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError("a message needs a role, such as user, assistant or system", param=f"{path}.role")
    content = _content(message.get("content"), role, f"{path}.content")
    given = {key: value for key, value in message.items() if value is not None}  # clients write out what they lack
    return {**given, "content": content}


def _content(content: Any, role: str, path: str) -> str:
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        return "\n".join(_part(part, f"{path}[{i}]") for i, part in enumerate(content))
    raise RequestError("content must be a string or a list of text parts", param=path)


def _part(part: Any, path: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise RequestError("a content part must be an object with a type, such as text", param=path)
    kind = part["type"]
    if kind != "text":
        modality = _MODALITIES.get(kind)
        what = f"{modality} input" if modality else f"the content part type {kind[:40]!r}"
        raise RequestError(f"{what} isn't supported by this model; it takes text parts alone", param=path)
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError("a text part needs a text string", param=f"{path}.text")
    return text
