"""What parameters say about tokens, worked out with the model's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from corefw.errors import RequestError
from corefw.frontend.tokenizer.base import Tokenizer
from corefw.messages.sampling import SamplingParams

__all__ = ["check_choosable", "truncated", "with_token_ids"]

# Stands before a word where a tokenizer puts a blank of its own in front of every text.
_ANCHOR = "\n"


def with_token_ids(params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """The parameters with bad words as token ids; every id in them is one of the vocabulary.

    Raises:
        RequestError: an id is out of vocabulary.
    """
    if params.bad_words:
        words = (sequence for word in params.bad_words for sequence in _spellings(tokenizer, word))
        ids = tuple(dict.fromkeys((*params.bad_words_token_ids, *words)))
        params = msgspec.structs.replace(params, bad_words_token_ids=ids)
    params.check_vocabulary(tokenizer.vocab_size)
    return params


def check_choosable(params: SamplingParams, eos_ids: Sequence[int]) -> None:
    """Refuse parameters that leave the first token no choice. Later ones are known when they are due.

    Raises:
        RequestError: every allowed id is forbidden, by ``bad_words`` or before ``min_tokens``.
    """
    if params.allowed_token_ids is None:
        return
    left = set(params.allowed_token_ids) - {ids[0] for ids in params.bad_words_token_ids if len(ids) == 1}
    if not left:
        raise RequestError("bad_words forbid every id of allowed_token_ids; loosen one of them", param="bad_words")
    if params.min_tokens > 0 and left <= {*(() if params.ignore_eos else eos_ids), *params.stop_token_ids}:
        raise RequestError(
            "min_tokens forbids tokens that end the output, and allowed_token_ids allows no other; loosen one of them",
            param="min_tokens",
        )


def truncated(prompt_ids: Sequence[int], params: SamplingParams, max_model_len: int) -> list[int]:
    """The prompt's last tokens, as many as ``truncate_prompt_tokens`` leaves. Truncating twice changes nothing.

    Raises:
        RequestError: -1, and ``max_tokens`` leaves no room for a prompt.
    """
    limit = params.truncate_prompt_tokens
    if limit is None:
        return list(prompt_ids)
    if limit == -1:
        limit = max_model_len - max(1, params.max_tokens or 1)
        if limit < 1:
            raise RequestError(
                f"max_tokens leaves no room for a prompt in the context of {max_model_len} tokens", param="max_tokens"
            )
    return list(prompt_ids[-limit:])


def _spellings(tokenizer: Tokenizer, word: str) -> list[tuple[int, ...]]:
    """Token ids of a word as it stands inside a text: as it is, and after a blank."""
    bare = word.lstrip(" ")
    found = (_inside_text(tokenizer, text) for text in dict.fromkeys((word, bare, " " + bare)))
    return [tuple(ids) for ids in found if ids]


def _inside_text(tokenizer: Tokenizer, text: str) -> list[int]:
    if tokenizer.strips_blank:
        anchor = tokenizer.encode(_ANCHOR, add_special_tokens=False)
        ids = tokenizer.encode(_ANCHOR + text, add_special_tokens=False)
        if ids[: len(anchor)] == anchor:
            return ids[len(anchor) :]
    return tokenizer.encode(text, add_special_tokens=False)
