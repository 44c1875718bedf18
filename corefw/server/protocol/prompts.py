"""The ``prompt`` field: a text, token ids, or a list of either."""

from __future__ import annotations

from typing import Any

from corefw.errors import RequestError
from corefw.server.protocol.fields import json_kind

__all__ = ["PROMPT_SCHEMAS", "TOKEN_IDS_SCHEMA", "Prompt", "parse_prompts", "parse_token_ids"]

# A text or token ids, with the path that errors name.
Prompt = tuple[str, str | list[int]]

_TEXT: dict[str, Any] = {"type": "string"}
# What ``parse_token_ids`` reads.
TOKEN_IDS_SCHEMA: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_IDS: dict[str, Any] = {**TOKEN_IDS_SCHEMA, "minItems": 1}
# What ``parse_prompts`` reads; the number of prompts is up to the server's --max-prompts.
PROMPT_SCHEMAS: tuple[dict[str, Any], ...] = (
    _TEXT,
    _IDS,
    {"type": "array", "minItems": 1, "items": _TEXT},
    {"type": "array", "minItems": 1, "items": _IDS},
)


def parse_prompts(value: object, *, max_prompts: int, num_token_ids: int) -> list[Prompt]:
    """Read a raw ``prompt``. Empty prompts inside a list are the renderer's to refuse.

    Args:
        value: as the client sent it.
        max_prompts: the longest list of prompts.
        num_token_ids: ids must be below.

    Raises:
        RequestError: a shape that isn't accepted, with the path of the first element that is wrong.
    """
    if isinstance(value, str):
        return [("prompt", value)]
    if not isinstance(value, list):
        raise RequestError(f"prompt must be a string or a list, got {json_kind(value)}", param="prompt")
    if not value:
        raise RequestError("prompt must not be empty", param="prompt")
    if _is_number(value[0]):
        return [("prompt", parse_token_ids(value, "prompt", num_token_ids))]
    if len(value) > max_prompts:
        raise RequestError(f"prompt takes at most {max_prompts} prompts, got {len(value)}", param="prompt")
    if isinstance(value[0], str):
        return [(f"prompt[{i}]", _text(item, f"prompt[{i}]")) for i, item in enumerate(value)]
    return [(f"prompt[{i}]", parse_token_ids(item, f"prompt[{i}]", num_token_ids)) for i, item in enumerate(value)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _text(item: object, path: str) -> str:
    if not isinstance(item, str):
        raise RequestError(f"{path} must be a string like the prompts before it, got {json_kind(item)}", param=path)
    return item


def parse_token_ids(item: object, path: str, num_token_ids: int) -> list[int]:
    """Read a raw list of token ids, which may be empty.

    Args:
        item: as the client sent it.
        path: of the field, for errors.
        num_token_ids: ids must be below.

    Raises:
        RequestError: no list, or one of its items is no token id; ``param`` is its path.
    """
    if not isinstance(item, list):
        raise RequestError(f"{path} must be a list of token ids, got {json_kind(item)}", param=path)
    if set(map(type, item)) - {int}:
        i = next(i for i, token_id in enumerate(item) if type(token_id) is not int)
        raise RequestError(f"{path}[{i}] must be a token id, got {json_kind(item[i])}", param=f"{path}[{i}]")
    if item and (min(item) < 0 or max(item) >= num_token_ids):
        i = next(i for i, token_id in enumerate(item) if not 0 <= token_id < num_token_ids)
        raise RequestError(f"{path}[{i}] is out of vocabulary; ids are in [0, {num_token_ids})", param=f"{path}[{i}]")
    return item
