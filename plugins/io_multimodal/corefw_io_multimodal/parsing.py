"""Content parts as the OpenAI API has them, and what of them is media."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corefw.errors import RequestError
from corefw_io_multimodal.sources import Encoded
from corefw_io_multimodal.tracker import MediaTracker

__all__ = ["parse_messages"]

# A part's type, which is also the name of its field, and its modality.
_URL_PARTS = {"image_url": "image", "audio_url": "audio", "video_url": "video"}
_AUDIO_FORMATS = ("wav", "mp3", "flac", "ogg", "opus", "m4a", "aac", "pcm16", "webm")
_MAX_ID_CHARS = 256


def parse_messages(messages: Sequence[Mapping[str, Any]], tracker: MediaTracker) -> list[dict[str, Any]]:
    """The messages with a text part in the place of each media part: the item's mark.

    Args:
        messages: as the client sent them; what isn't media is left as it is.
        tracker: gets the items, in their order.

    Raises:
        RequestError: a media part is malformed, or isn't taken.
    """
    parsed = []
    for i, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list | tuple):
            parts = [_part(part, f"messages[{i}].content[{j}]", tracker) for j, part in enumerate(content)]
            parsed.append({**message, "content": parts})
        else:
            parsed.append(dict(message))
    return parsed


def _part(part: Any, path: str, tracker: MediaTracker) -> Any:
    if not isinstance(part, Mapping) or part.get("type") == "text":
        return part
    kind = part.get("type")
    if not isinstance(kind, str):
        return part
    if kind not in _URL_PARTS and kind != "input_audio":
        raise RequestError(
            f"media come as {', '.join((*_URL_PARTS, 'input_audio'))}, not as {kind[:40]!r}", param=f"{path}.type"
        )
    _check_fields(part, path, (kind, "uuid"))
    media_id = _media_id(part.get("uuid"), f"{path}.uuid")
    modality = _URL_PARTS.get(kind, "audio")
    value = part.get(kind)
    if value is None or value == {}:
        if media_id is None:
            raise RequestError(f"{path}.{kind} is required, unless uuid names media sent earlier", param=path)
        return _text(tracker.add(modality, path, None, media_id))
    read = _url if kind in _URL_PARTS else _audio
    return _text(tracker.add(modality, path, read(value, f"{path}.{kind}"), media_id))


def _text(mark: str) -> dict[str, str]:
    return {"type": "text", "text": mark}


def _url(value: Any, path: str) -> str:
    if isinstance(value, Mapping):
        _check_fields(value, path, ("url", "detail"))
        value, path = value.get("url"), f"{path}.url"
    if not isinstance(value, str) or not value:
        raise RequestError(f"{path} must be a URL", param=path)
    return value


def _audio(value: Any, path: str) -> Encoded:
    if not isinstance(value, Mapping):
        raise RequestError(f"{path} must be an object with data and format", param=path)
    _check_fields(value, path, ("data", "format"))
    data, form = value.get("data"), value.get("format")
    if not isinstance(data, str):
        raise RequestError(f"{path}.data must be base64", param=f"{path}.data")
    if form not in _AUDIO_FORMATS:
        raise RequestError(f"{path}.format must be one of {', '.join(_AUDIO_FORMATS)}", param=f"{path}.format")
    return Encoded(data, f"audio/{form}")


def _media_id(value: Any, path: str) -> str | None:
    if value is not None and (not isinstance(value, str) or not 0 < len(value) <= _MAX_ID_CHARS):
        raise RequestError(f"{path} must be a text of 1 to {_MAX_ID_CHARS} characters", param=path)
    return value


def _check_fields(value: Mapping[str, Any], path: str, known: Sequence[str]) -> None:
    for name in value:
        if name != "type" and name not in known:
            shown = str(name)[:40]
            raise RequestError(f"unknown field {path}.{shown}; known are {', '.join(known)}", param=f"{path}.{shown}")
