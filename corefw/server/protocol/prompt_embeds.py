"""The ``prompt_embeds`` field: a prompt as embeddings in base64, or a list of such; beside ``prompt`` or without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from corefw.errors import RequestError
from corefw.server.protocol.fields import json_kind
from corefw.server.protocol.prompts import parse_prompts

__all__ = ["PROMPT_EMBEDS_SCHEMAS", "AnyPrompt", "EncodedEmbeds", "parse_all_prompts"]

_NAME = "prompt_embeds"
_ENCODED: dict[str, Any] = {"type": "string", "contentEncoding": "base64"}
PROMPT_EMBEDS_SCHEMAS: tuple[dict[str, Any], ...] = (_ENCODED, {"type": "array", "minItems": 1, "items": _ENCODED})


@dataclass(frozen=True, slots=True)
class EncodedEmbeds:
    """A file's bytes in base64, not yet read."""

    text: str


# With the path that errors name.
AnyPrompt = tuple[str, str | list[int] | EncodedEmbeds]


def parse_all_prompts(prompt: object, embeds: object, *, max_prompts: int, num_token_ids: int) -> list[AnyPrompt]:
    """Read raw ``prompt_embeds`` and ``prompt``: prompts given as embeddings come first.

    Beside embeddings an empty ``prompt`` is none: clients that can't leave it out send that.

    Args:
        prompt, embeds: as the client sent them.
        max_prompts: of both together.
        num_token_ids: see ``parse_prompts``.

    Raises:
        RequestError: a shape that isn't accepted, with its path.
    """
    if embeds is None:
        return [*parse_prompts(prompt, max_prompts=max_prompts, num_token_ids=num_token_ids)]
    found: list[AnyPrompt] = [*_parse_embeds(embeds)]
    if prompt is not None and prompt not in ("", []):
        found += parse_prompts(prompt, max_prompts=max_prompts, num_token_ids=num_token_ids)
    if len(found) > max_prompts:
        raise RequestError(f"{_NAME} and prompt take at most {max_prompts} prompts, got {len(found)}", param=_NAME)
    return found


def _parse_embeds(value: object) -> list[tuple[str, EncodedEmbeds]]:
    if isinstance(value, str):
        return [(_NAME, EncodedEmbeds(value))]
    if not isinstance(value, list):
        raise RequestError(f"{_NAME} must be a string or a list of strings, got {json_kind(value)}", param=_NAME)
    if not value:
        raise RequestError(f"{_NAME} must not be empty", param=_NAME)
    return [(f"{_NAME}[{i}]", EncodedEmbeds(_text(item, f"{_NAME}[{i}]"))) for i, item in enumerate(value)]


def _text(item: object, path: str) -> str:
    if not isinstance(item, str):
        raise RequestError(f"{path} must be a string, got {json_kind(item)}", param=path)
    return item
