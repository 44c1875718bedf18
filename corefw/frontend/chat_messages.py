"""Chat messages as clients send them, checked and brought into the form that templates expect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from corefw.errors import RequestError

__all__ = ["MODALITIES", "check_template_ends", "has_media", "refused_part", "template_messages"]

# What a content part of a type is, other than text.
MODALITIES = {
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


def check_template_ends(add_generation_prompt: bool | None, continue_final_message: bool | None) -> None:
    """Refuse a prompt that would have to end in two ways.

    Raises:
        RequestError: both are true.
    """
    if add_generation_prompt and continue_final_message:
        raise RequestError(
            "continue_final_message and add_generation_prompt can't both be true; leave add_generation_prompt out",
            param="continue_final_message",
        )


def has_media(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a content part of any message isn't text, by its type."""
    return any(
        isinstance(part, Mapping) and part.get("type") in MODALITIES
        for message in messages
        if isinstance(message, Mapping) and isinstance(message.get("content"), list | tuple)
        for part in message["content"]
    )


def refused_part(kind: str, taken: Iterable[str] = ()) -> str:
    """Why a model that takes text and ``taken`` doesn't take a part of that type."""
    modality = MODALITIES.get(kind)
    what = f"{modality} input" if modality else f"content part of the type {kind[:40]!r}"
    return f"the model takes {' and '.join(('text', *sorted(taken)))} only, no {what}"


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
        raise RequestError(refused_part(kind), param=path)
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError("a text part needs a text string", param=f"{path}.text")
    return text
