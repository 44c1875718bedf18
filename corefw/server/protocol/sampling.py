"""How the fields of a generating request become ``SamplingParams``."""

from __future__ import annotations

from typing import Any

from corefw.errors import RequestError
from corefw.frontend.sampling_defaults import SamplingDefaults
from corefw.messages.sampling import (
    MAX_LOGIT_BIAS,
    MAX_LOGIT_BIAS_ENTRIES,
    MAX_SEED,
    SamplingParams,
)
from corefw.server.protocol.fields import json_kind
from corefw.server.protocol.generation_fields import (
    MAX_BAD_WORDS,
    MAX_EXTRA_ARGS,
    MAX_STOP_CHARS,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
    TOKEN_ID,
    GenerationFields,
)

__all__ = ["sampling_params"]


def sampling_params(
    fields: GenerationFields,
    defaults: SamplingDefaults,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    vocab_size: int,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """Join request and defaults.

    Args:
        max_tokens: the route's own reading of its limit fields; None is up to the context's end.
        logprobs, prompt_logprobs: the route's own reading of its logprobs fields.
        vocab_size: token ids must be below.
    """
    top_k = fields.top_k
    if top_k is not None and top_k < -1:
        raise RequestError("top_k must be -1 or 0 (both: off) or more", param="top_k")
    allowed = _token_ids("allowed_token_ids", fields.allowed_token_ids, vocab_size, vocab_size)
    return SamplingParams(
        n=_given(fields.n, 1),
        temperature=_given(fields.temperature, defaults.temperature),
        top_p=_given(fields.top_p, defaults.top_p),
        top_k=defaults.top_k if top_k is None else max(0, top_k),
        min_p=_given(fields.min_p, defaults.min_p),
        repetition_penalty=_given(fields.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=_given(fields.presence_penalty, 0.0),
        frequency_penalty=_given(fields.frequency_penalty, 0.0),
        logit_bias=_logit_bias(fields.logit_bias, vocab_size),
        allowed_token_ids=allowed,
        bad_words=_bad_words(fields.bad_words),
        seed=fields.seed,
        max_tokens=max_tokens,
        min_tokens=_given(fields.min_tokens, 0),
        stop=_stops(fields.stop),
        stop_token_ids=_token_ids("stop_token_ids", fields.stop_token_ids, vocab_size, MAX_STOP_TOKEN_IDS) or (),
        ignore_eos=bool(fields.ignore_eos),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        detokenize=_given(fields.detokenize, True),
        include_stop_str_in_output=bool(fields.include_stop_str_in_output),
        skip_special_tokens=_given(fields.skip_special_tokens, True),
        spaces_between_special_tokens=_given(fields.spaces_between_special_tokens, True),
        truncate_prompt_tokens=fields.truncate_prompt_tokens,
        repetition_detection=fields.repetition_detection,
        extra_args=_extra_args(fields.vllm_xargs),
    )


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value


def _stops(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        raise RequestError(f"stop must be a string or a list of strings, got {json_kind(value)}", param="stop")
    if len(texts) > MAX_STOPS:
        raise RequestError(f"stop takes at most {MAX_STOPS} strings, got {len(texts)}", param="stop")
    for i, text in enumerate(texts):
        path = "stop" if isinstance(value, str) else f"stop[{i}]"
        if not isinstance(text, str):
            raise RequestError(f"{path} must be a string, got {json_kind(text)}", param=path)
        if not 1 <= len(text) <= MAX_STOP_CHARS:
            raise RequestError(f"{path} must have 1 to {MAX_STOP_CHARS} characters, got {len(text)}", param=path)
    return tuple(texts)


def _token_ids(name: str, ids: list[int] | None, vocab_size: int, max_ids: int) -> tuple[int, ...] | None:
    if ids is None:
        return None
    if len(ids) > max_ids:
        raise RequestError(f"{name} takes at most {max_ids} ids, got {len(ids)}", param=name)
    for i, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            path = f"{name}[{i}]"
            raise RequestError(f"{path} is out of vocabulary; ids are in [0, {vocab_size})", param=path)
    return tuple(ids)


def _bad_words(words: list[str] | None) -> tuple[str, ...]:
    if not words:
        return ()
    if len(words) > MAX_BAD_WORDS:
        raise RequestError(f"bad_words takes at most {MAX_BAD_WORDS} words, got {len(words)}", param="bad_words")
    for i, word in enumerate(words):
        path = f"bad_words[{i}]"
        if not 1 <= len(word) <= MAX_STOP_CHARS:
            raise RequestError(f"{path} must have 1 to {MAX_STOP_CHARS} characters, got {len(word)}", param=path)
        if not word.strip() or any("\ud800" <= char <= "\udfff" for char in word):
            raise RequestError(f"{path} must be valid Unicode, and more than blanks", param=path)
    return tuple(words)


def _logit_bias(value: object, vocab_size: int) -> dict[int, float]:
    """The API's object from token ids, written as strings, to numbers."""
    if value is None:
        return {}
    name = "logit_bias"
    if not isinstance(value, dict):
        raise RequestError(f"{name} must be an object of token ids and numbers, got {json_kind(value)}", param=name)
    if len(value) > MAX_LOGIT_BIAS_ENTRIES:
        raise RequestError(f"{name} takes at most {MAX_LOGIT_BIAS_ENTRIES} token ids, got {len(value)}", param=name)
    biases = {}
    for key, bias in value.items():
        if not TOKEN_ID.fullmatch(key) or not 0 <= int(key) < vocab_size:
            raise RequestError(f"the keys of {name} must be token ids in [0, {vocab_size})", param=name)
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not abs(bias) <= MAX_LOGIT_BIAS:
            path = f"{name}.{int(key)}"
            raise RequestError(f"{path} must be a number in [-{MAX_LOGIT_BIAS:g}, {MAX_LOGIT_BIAS:g}]", param=path)
        biases[int(key)] = float(bias)
    return biases


def _extra_args(values: dict[str, Any] | None) -> dict[str, Any]:
    """Plain values for logits processors: scalars, and lists of them."""
    if not values:
        return {}
    if len(values) > MAX_EXTRA_ARGS:
        raise RequestError(f"vllm_xargs takes at most {MAX_EXTRA_ARGS} values, got {len(values)}", param="vllm_xargs")
    for value in values.values():
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, bool | float | str) or _is_word(item) for item in items):
            raise RequestError(
                "vllm_xargs takes strings, numbers that fit 64 bits, booleans and lists of these", param="vllm_xargs"
            )
    return dict(values)


def _is_word(value: object) -> bool:
    return isinstance(value, int) and abs(value) <= MAX_SEED
