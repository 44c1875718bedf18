"""Fields that steer generation, shared by every generating route, and how they become ``SamplingParams``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from corefw.config.engine_config import ServerConfig
from corefw.errors import ConfigError, RequestError
from corefw.messages.sampling import SamplingParams
from corefw.server.protocol.fields import json_kind

__all__ = [
    "HARMLESS_FIELDS",
    "UNSUPPORTED_FIELDS",
    "GenerationFields",
    "SamplingDefaults",
    "StreamOptions",
    "sampling_params",
]

MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 1024
_MAX_PRIORITY = 2**31 - 1

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
    "allowed_token_ids": (),
    "bad_words": ([],),
    "chat_template": (),
    "detokenize": (True,),
    "frequency_penalty": (0,),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "presence_penalty": (0,),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a stream carries besides the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class GenerationFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of every generating route. ``None`` is what a client says with ``null`` or by silence."""

    model: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: Any = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

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


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingDefaults:
    """What the model's ``generation_config.json`` says where a request is silent."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    @classmethod
    def from_generation_config(cls, values: Mapping[str, Any]) -> SamplingDefaults:
        """Take the sampling values that are there.

        Raises:
            ConfigError: one of them is of the wrong type or out of range.
        """
        found = {name: values[name] for name in cls.__slots__ if values.get(name) is not None}
        for name, value in found.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"generation_config: {name} must be a number, got {json_kind(value)}")
        if "top_k" in found:
            found["top_k"] = _default_top_k(found["top_k"])
        try:
            SamplingParams(**found)
        except RequestError as error:
            raise ConfigError(f"generation_config: {error.message}; correct the model's file") from None
        return cls(**found)


def _default_top_k(value: float) -> int:
    if not -1 <= value < 2**63 or int(value) != value:  # NaN and infinity are in no range
        raise ConfigError(f"generation_config: top_k must be a whole number from -1, got {str(value)[:40]}")
    return max(0, int(value))


def sampling_params(
    fields: GenerationFields,
    defaults: SamplingDefaults,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    vocab_size: int,
) -> SamplingParams:
    """Join request and defaults.

    Args:
        max_tokens: the route's own reading of its limit fields; None is up to the context's end.
        logprobs: the route's own reading of its logprobs fields.
        vocab_size: token ids must be below.
    """
    top_k = fields.top_k
    if top_k is not None and top_k < -1:
        raise RequestError("top_k must be -1 or 0 (both: off) or more", param="top_k")
    return SamplingParams(
        n=_given(fields.n, 1),
        temperature=_given(fields.temperature, defaults.temperature),
        top_p=_given(fields.top_p, defaults.top_p),
        top_k=defaults.top_k if top_k is None else max(0, top_k),
        min_p=_given(fields.min_p, defaults.min_p),
        seed=fields.seed,
        max_tokens=max_tokens,
        min_tokens=_given(fields.min_tokens, 0),
        stop=_stops(fields.stop),
        stop_token_ids=_stop_token_ids(fields.stop_token_ids, vocab_size),
        ignore_eos=bool(fields.ignore_eos),
        logprobs=logprobs,
        include_stop_str_in_output=bool(fields.include_stop_str_in_output),
        skip_special_tokens=_given(fields.skip_special_tokens, True),
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


def _stop_token_ids(ids: list[int] | None, vocab_size: int) -> tuple[int, ...]:
    if ids is None:
        return ()
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise RequestError(
            f"stop_token_ids takes at most {MAX_STOP_TOKEN_IDS} ids, got {len(ids)}", param="stop_token_ids"
        )
    for i, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            path = f"stop_token_ids[{i}]"
            raise RequestError(f"{path} is out of vocabulary; ids are in [0, {vocab_size})", param=path)
    return tuple(ids)
