"""Fields that every generating route has: their types, what they mean, and what no other part checks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from corefw.config.engine_config import ServerConfig
from corefw.errors import RequestError
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
)
from corefw.server.protocol.documented import documented, or_null
from corefw.server.tags import TAGS_SCHEMA, check_tags

__all__ = [
    "HARMLESS_FIELDS",
    "MAX_BAD_WORDS",
    "MAX_EXTRA_ARGS",
    "MAX_STOPS",
    "MAX_STOP_CHARS",
    "MAX_STOP_TOKEN_IDS",
    "TOKEN_ID",
    "UNSUPPORTED_FIELDS",
    "GenerationFields",
    "StreamOptions",
    "check_num_logprobs",
]

MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_BAD_WORDS = 256
MAX_EXTRA_ARGS = 64
_MAX_PRIORITY = 2**31 - 1
TOKEN_ID = re.compile(r"[0-9]{1,18}")

# Fields of the API that never change an answer.
HARMLESS_FIELDS = frozenset(
    {
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
_OBJECT = {"type": "object"}
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
            propertyNames={"pattern": f"^{TOKEN_ID.pattern}$"},
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
    extensions: Annotated[
        dict[str, Any] | None,
        documented("Data for plugins of the server, by plugin; each says what it takes.", additionalProperties=_OBJECT),
    ] = None
    metadata: Annotated[
        dict[str, str] | None,
        documented("Tags, for the figures of the server; they never change an answer.", **TAGS_SCHEMA),
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
        check_tags(self.metadata, param="metadata")
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
