"""Parts that answers of several routes share: usage, errors, the list of models."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "ErrorBody",
    "ErrorDetail",
    "ModelCard",
    "ModelList",
    "PromptLogprobsBody",
    "PromptTokenLogprob",
    "PromptTokensDetails",
    "Usage",
]


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    """Where prompt tokens came from."""

    cached_tokens: int = 0


class Usage(msgspec.Struct, kw_only=True):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class PromptTokenLogprob(msgspec.Struct, kw_only=True):
    """Of a token that could stand at a position of the prompt. ``rank`` 1 is the most likely."""

    logprob: float
    rank: int
    decoded_token: str


# One entry a prompt token, by token id: the prompt's own token and the most likely ones; none for the first.
PromptLogprobsBody = list[dict[str, PromptTokenLogprob] | None]


class ErrorDetail(msgspec.Struct, kw_only=True):
    """What went wrong, in the API's terms."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, kw_only=True):
    """Body of every answer that isn't a success."""

    error: ErrorDetail


class ModelCard(msgspec.Struct, kw_only=True):
    """One served model."""

    id: str
    created: int
    max_model_len: int
    root: str
    object: Literal["model"] = "model"
    owned_by: str = "corefw"
    parent: str | None = None


class ModelList(msgspec.Struct, kw_only=True):
    """All served models."""

    data: list[ModelCard]
    object: Literal["list"] = "list"
