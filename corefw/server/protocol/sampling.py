"""Fields that steer generation, shared by every generating route, and how they become ``SamplingParams``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from corefw.config.engine_config import ServerConfig
from corefw.errors import RequestError
from corefw.frontend.sampling_defaults import SamplingDefaults
from corefw.messages.sampling import (
    ALL_LOGPROBS,
    MAX_LOGIT_BIAS,
    MAX_LOGIT_BIAS_ENTRIES,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_SEED,
    MAX_TEMPERATURE,
    MIN_REPETITION_PENALTY,
    RepetitionDetection,
    SamplingParams,
)
from corefw.server.protocol.documented import documented, or_null
from corefw.server.protocol.fields import json_kind

__all__ = [
    "HARMLESS_FIELDS",
    "UNSUPPORTED_FIELDS",
    "GenerationFields",
    "StreamOptions",
    "check_num_logprobs",
    "sampling_params",
]

MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_BAD_WORDS = 256
MAX_EXTRA_ARGS = 64
_MAX_PRIORITY = 2**31 - 1
_TOKEN_ID = re.compile(r"[0-9]{1,18}")

# Fields of the API that never change an answer.
HARMLESS_FIELDS = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)

# Fields of the API that aren't built yet, with the values that ask for nothing.
UNSUPPORTED_FIELDS: Mapping[str, tuple[object, ...]] = {
    "chat_template": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "use_beam_search": (False,),
}


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a stream carries besides the text."""

    include_usage: Annotated[bool | None, documented("End with an event that has no choices, but the usage.")] = None
    continuous_usage_stats: Annotated[
        bool | None, documented("Together with include_usage: every event has the usage so far.")
    ] = None
    include_obfuscation: Annotated[bool | None, documented("Not supported.", enum=[None, False])] = None


_TOKEN_IDS = {"minimum": 0}
_STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
_SCALAR = {"type": ["string", "number", "boolean"]}
_PENALTY = {"minimum": -MAX_PENALTY, "maximum": MAX_PENALTY}
_ID = {"minLength": 1, "maxLength": 256}

Flag = bool | None


class GenerationFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of every generating route. ``None`` is what a client says with ``null`` or by silence."""

    model: Annotated[str | None, documented("A name that /v1/models lists; without it the served model answers.")] = (
        None
    )
    n: Annotated[
        int | None,
        documented("Number of outputs for each prompt; 1 by default, at most the server's --max-n.", minimum=1),
    ] = None
    temperature: Annotated[
        float | None,
        documented(
            "0 takes the most likely token. Without it: what the model recommends, else 1.",
            minimum=0,
            maximum=MAX_TEMPERATURE,
        ),
    ] = None
    top_p: Annotated[
        float | None,
        documented("Keep the smallest set of most likely tokens with this mass.", exclusiveMinimum=0, maximum=1),
    ] = None
    top_k: Annotated[
        int | None, documented("Keep the k most likely tokens; 0 and -1 keep all.", minimum=-1, maximum=MAX_SEED)
    ] = None
    min_p: Annotated[
        float | None,
        documented("Drop tokens less likely than this share of the most likely one.", minimum=0, maximum=1),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        documented(
            "Above 1 makes tokens of the prompt and the output less likely.",
            minimum=MIN_REPETITION_PENALTY,
            maximum=MAX_REPETITION_PENALTY,
        ),
    ] = None
    presence_penalty: Annotated[
        float | None, documented("Subtracted from the logit of each token that is in the output.", **_PENALTY)
    ] = None
    frequency_penalty: Annotated[
        float | None, documented("Subtracted as many times as the token is in the output.", **_PENALTY)
    ] = None
    logit_bias: Annotated[
        Any,
        documented(
            "By token id: added to its logit.",
            type=["object", "null"],
            maxProperties=MAX_LOGIT_BIAS_ENTRIES,
            propertyNames={"pattern": f"^{_TOKEN_ID.pattern}$"},
            additionalProperties={"type": "number", "minimum": -MAX_LOGIT_BIAS, "maximum": MAX_LOGIT_BIAS},
        ),
    ] = None
    allowed_token_ids: Annotated[
        list[int] | None, documented("Only these tokens may be chosen.", minItems=1, items=_TOKEN_IDS)
    ] = None
    bad_words: Annotated[
        list[str] | None,
        documented(
            "Texts that the output may not contain.",
            maxItems=MAX_BAD_WORDS,
            items={"minLength": 1, "maxLength": MAX_STOP_CHARS, "pattern": r"\S"},
        ),
    ] = None
    seed: Annotated[
        int | None, documented("Makes the output reproducible.", minimum=-MAX_SEED - 1, maximum=MAX_SEED)
    ] = None
    max_tokens: Annotated[
        int | None,
        documented(
            "At most so many output tokens; 0 only scores the prompt, and needs its log-probabilities.",
            minimum=0,
            maximum=MAX_SEED,
        ),
    ] = None
    min_tokens: Annotated[
        int | None, documented("Nothing ends the output before so many tokens.", minimum=0, maximum=MAX_SEED)
    ] = None
    stop: Annotated[
        Any,
        documented(
            "Texts that end the output; it ends before the one that comes first.",
            anyOf=or_null(_STOP, {"type": "array", "maxItems": MAX_STOPS, "items": _STOP}),
        ),
    ] = None
    stop_token_ids: Annotated[
        list[int] | None, documented("Tokens that end the output.", maxItems=MAX_STOP_TOKEN_IDS, items=_TOKEN_IDS)
    ] = None
    ignore_eos: Annotated[Flag, documented("The model's own end tokens don't end the output.")] = None
    include_stop_str_in_output: Annotated[Flag, documented("Keep the stop text that ended the output.")] = None
    skip_special_tokens: Annotated[Flag, documented("Leave control tokens out of the text; true by default.")] = None
    spaces_between_special_tokens: Annotated[
        Flag, documented("Keep blanks between control tokens that are shown; true by default.")
    ] = None
    detokenize: Annotated[Flag, documented("Make text of the output; true by default.")] = None
    prompt_logprobs: Annotated[
        int | None,
        documented(
            "Log-probabilities of the prompt's tokens and of so many most likely ones, at most the server's "
            "--max-logprobs; -1, for all, where that has no limit. Not in streams.",
            minimum=ALL_LOGPROBS,
        ),
    ] = None
    truncate_prompt_tokens: Annotated[
        int | None,
        documented(
            "Keep so many last tokens of the prompt; -1: as many as leave room for the output.",
            minimum=-1,
            maximum=MAX_SEED,
            **{"not": {"const": 0}},
        ),
    ] = None
    repetition_detection: Annotated[
        RepetitionDetection | None, documented("End an output that repeats itself over and over.")
    ] = None
    vllm_xargs: Annotated[
        dict[str, Any] | None,
        documented(
            "Values for logits processors that the server has.",
            maxProperties=MAX_EXTRA_ARGS,
            additionalProperties={"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR}]},
        ),
    ] = None
    stream: Annotated[Flag, documented("Answer with events as the output grows.")] = None
    stream_options: Annotated[StreamOptions | None, documented("Goes with stream: true only.")] = None
    priority: Annotated[
        int | None,
        documented(
            "Lower ones go first, under a --scheduling-policy that heeds it; else only 0.",
            minimum=-_MAX_PRIORITY,
            maximum=_MAX_PRIORITY,
        ),
    ] = None
    cache_salt: Annotated[
        str | None, documented("Cached prompts are shared only among requests with the same one.", **_ID)
    ] = None
    request_id: Annotated[str | None, documented("Becomes a part of the answer's id.", **_ID)] = None
    return_token_ids: Annotated[Flag, documented("Answer with the ids of prompt and output, too.")] = None
    return_tokens_as_token_ids: Annotated[
        Flag, documented("Log-probabilities name tokens as token_id:N in place of their text.")
    ] = None

    def check(self, limits: ServerConfig) -> None:
        """Check what no other part checks.

        Raises:
            RequestError: a value that the server doesn't accept, or two that don't go together.
        """
        if self.n is not None and not 1 <= self.n <= limits.max_n:
            raise RequestError(f"n must be in [1, {limits.max_n}]", param="n")
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options goes with stream: true only", param="stream_options")
        if self.stream_options is not None and self.stream_options.include_obfuscation:
            raise RequestError(
                "stream_options.include_obfuscation is not supported by this server; leave it out",
                param="stream_options.include_obfuscation",
                code="unsupported_parameter",
            )
        if self.stream and self.prompt_logprobs is not None:
            raise RequestError("prompt_logprobs doesn't go with stream: true", param="prompt_logprobs")
        check_num_logprobs("prompt_logprobs", self.prompt_logprobs, limits.max_logprobs)
        if self.priority is not None and abs(self.priority) > _MAX_PRIORITY:
            raise RequestError(f"priority must be within ±{_MAX_PRIORITY}", param="priority")
        for name in ("cache_salt", "request_id"):
            text = getattr(self, name)
            if text is not None and not 1 <= len(text) <= 256:
                raise RequestError(f"{name} must have 1 to 256 characters", param=name)

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk carries usage."""
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)


def check_num_logprobs(name: str, value: int | None, max_logprobs: int) -> None:
    """Refuse more log-probabilities than the server gives; -1, for all, needs a server without a limit.

    Raises:
        RequestError: naming the field.
    """
    if value is None or (max_logprobs == ALL_LOGPROBS and value >= ALL_LOGPROBS):
        return
    if not 0 <= value <= max_logprobs:
        accepted = "-1 (all) or more" if max_logprobs == ALL_LOGPROBS else f"in [0, {max_logprobs}]"
        raise RequestError(f"{name} must be {accepted}", param=name)


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
        if not _TOKEN_ID.fullmatch(key) or not 0 <= int(key) < vocab_size:
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
