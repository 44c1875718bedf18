"""Sampling parameters: what a request may ask of the sampler, checked at construction."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from corefw.errors import RequestError

__all__ = [
    "ALL_LOGPROBS",
    "GREEDY_EPS",
    "MAX_LOGIT_BIAS",
    "MAX_LOGIT_BIAS_ENTRIES",
    "MAX_PENALTY",
    "MAX_REPETITION_PENALTY",
    "MAX_SEED",
    "MAX_TEMPERATURE",
    "MIN_REPETITION_PENALTY",
    "RepetitionDetection",
    "RequestOutputKind",
    "SamplingParams",
]

# Temperatures below this are greedy. One constant for both meanings: choosing greedy rows, and never dividing by ~0.
GREEDY_EPS = 1e-5
_MAX_INT = 2**63 - 1  # what a message can carry
MAX_SEED = _MAX_INT
# As a number of log-probabilities: those of the whole vocabulary.
ALL_LOGPROBS = -1
MAX_LOGIT_BIAS = 100.0
MAX_LOGIT_BIAS_ENTRIES = 300
MAX_TEMPERATURE = 100.0
MAX_PENALTY = 2.0
# Beyond these a logit leaves float32's range.
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 100.0
_MAX_PATTERN_SIZE = 1024
_MAX_PATTERN_TOKENS = 65536


def _in_schemas(low: int, high: int) -> msgspec.Meta:
    """A range that schemas show; the check with its message is the struct's own."""
    return msgspec.Meta(extra_json_schema={"minimum": low, "maximum": high})


class RequestOutputKind(StrEnum):
    """What an update of a request carries: all so far, only what is new, or nothing before the end."""

    CUMULATIVE = "cumulative"
    DELTA = "delta"
    FINAL_ONLY = "final"


class RepetitionDetection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """When an output counts as stuck: its last tokens are one pattern, over and over.

    Attributes:
        max_pattern_size: the longest pattern that is looked for, in tokens.
        min_pattern_size: the shortest.
        min_count: so many times in a row it must stand at the end, at least twice.
    """

    max_pattern_size: Annotated[int, _in_schemas(1, _MAX_PATTERN_SIZE)]
    min_pattern_size: Annotated[int, _in_schemas(1, _MAX_PATTERN_SIZE)] = 1
    min_count: Annotated[int, _in_schemas(2, _MAX_PATTERN_TOKENS)] = 2

    def __post_init__(self) -> None:
        name = "repetition_detection"
        if not 1 <= self.min_pattern_size <= self.max_pattern_size <= _MAX_PATTERN_SIZE:
            raise RequestError(
                f"{name} needs 1 <= min_pattern_size <= max_pattern_size <= {_MAX_PATTERN_SIZE}", param=name
            )
        if self.min_count < 2 or self.min_count * self.max_pattern_size > _MAX_PATTERN_TOKENS:
            raise RequestError(
                f"{name}.min_count must be at least 2, and at most {_MAX_PATTERN_TOKENS} tokens with max_pattern_size",
                param=f"{name}.min_count",
            )


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next tokens are chosen and when they end.

    Attributes:
        n: number of independent outputs. The front end splits a request with n > 1; the core sees only n = 1.
        temperature: 0 (or anything below ``GREEDY_EPS``) is greedy.
        top_p: keep the smallest set of most likely tokens with at least this mass, in (0, 1].
        top_k: keep the k most likely tokens; 0 keeps all.
        min_p: drop tokens less likely than this share of the most likely one, in [0, 1].
        seed: makes the output reproducible; the front end fills in a random one where it is None.
        repetition_penalty: logits of tokens in the prompt or the output are divided by it where they are positive, else
            multiplied; 1 is off.
        presence_penalty: subtracted from the logit of every token that is in the output, in [-2, 2].
        frequency_penalty: subtracted as many times as the token is in the output, in [-2, 2].
        logit_bias: by token id, added to the logit; at most 300 ids, each bias in [-100, 100].
        allowed_token_ids: only these may be sampled; None allows all.
        bad_words: texts that the output may not contain; the front end fills in ``bad_words_token_ids`` from them.
        bad_words_token_ids: token sequences that the output may not contain.
        max_tokens: at most this many output tokens; None means up to the context's end; 0, which needs
            ``prompt_logprobs``, only scores the prompt.
        min_tokens: no end of sequence, stop token or stop string before this many output tokens.
        stop: stop strings; the output ends before the one that completes first.
        stop_token_ids: token ids that end the output.
        ignore_eos: the model's own end tokens don't end the output (``stop_token_ids`` still do).
        logprobs: return the log-probability of each chosen token and of this many most likely ones; -1 is all.
        prompt_logprobs: the same for each token of the prompt but the first. Such a request doesn't read the prefix
            cache.
        detokenize: make text of the output; without it there are no stop strings.
        include_stop_str_in_output: keep the stop string that ended the output.
        skip_special_tokens: leave control tokens out of the text.
        spaces_between_special_tokens: where control tokens are shown, keep blanks that a decoder puts between two.
        truncate_prompt_tokens: keep only this many last tokens of the prompt; -1: as many as leave room for the output.
        output_kind: what an update carries.
        repetition_detection: end an output that repeats itself, with ``length``.
        extra_args: plain data for logits processors.

    Raises:
        RequestError: a value is out of range; ``param`` names the field.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    output_kind: RequestOutputKind = RequestOutputKind.DELTA
    repetition_detection: RepetitionDetection | None = None
    extra_args: dict[str, Any] = {}

    def __post_init__(self) -> None:
        self._check_choice()
        self._check_tokens()
        self._check_ends()
        self._check_outputs()

    def _check_choice(self) -> None:
        _check_range("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        _check_range("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
        _check_range("presence_penalty", self.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
        _check_range("frequency_penalty", self.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
        _check_int("n", self.n, 1)
        _check_int("top_k", self.top_k, 0)
        if self.seed is not None and not -MAX_SEED - 1 <= self.seed <= MAX_SEED:
            raise RequestError("seed must fit a signed 64-bit integer", param="seed")

    def _check_tokens(self) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
            raise RequestError(
                f"logit_bias takes at most {MAX_LOGIT_BIAS_ENTRIES} token ids, got {len(self.logit_bias)}",
                param="logit_bias",
            )
        for bias in self.logit_bias.values():
            _check_range("logit_bias", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError("allowed_token_ids must not be empty; leave it out instead", param="allowed_token_ids")
        if any(not text.strip() for text in self.bad_words):
            raise RequestError("a bad word must not be empty or blank", param="bad_words")
        if any(not ids for ids in self.bad_words_token_ids):
            raise RequestError("a bad word must have at least one token id", param="bad_words")
        for name, ids in self._token_ids():
            if any(token_id < 0 for token_id in ids):
                raise RequestError(f"{name} must not be negative", param=name)

    def _check_ends(self) -> None:
        _check_int("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 0 if self.prompt_logprobs is not None else 1)
            if self.min_tokens > self.max_tokens:
                raise RequestError(
                    f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})", param="min_tokens"
                )
        if any(not text for text in self.stop):
            raise RequestError("a stop string must not be empty; leave it out instead", param="stop")
        if any(not 0 <= token_id <= _MAX_INT for token_id in self.stop_token_ids):
            raise RequestError(f"stop_token_ids must be in [0, {_MAX_INT}]", param="stop_token_ids")
        if self.stop and not self.detokenize:
            raise RequestError("stop strings need detokenize; use stop_token_ids instead", param="stop")

    def _check_outputs(self) -> None:
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, ALL_LOGPROBS)
        if self.prompt_logprobs is not None:
            _check_int("prompt_logprobs", self.prompt_logprobs, ALL_LOGPROBS)
        if self.truncate_prompt_tokens is not None and self.truncate_prompt_tokens != -1:
            _check_int("truncate_prompt_tokens", self.truncate_prompt_tokens, 1)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse token ids that aren't below ``vocab_size``.

        Raises:
            RequestError: ``param`` names the field.
        """
        for name, ids in self._token_ids():
            if any(token_id >= vocab_size for token_id in ids):
                raise RequestError(f"{name} has an id out of vocabulary; ids are in [0, {vocab_size})", param=name)

    def _token_ids(self) -> tuple[tuple[str, Iterable[int]], ...]:
        return (
            ("stop_token_ids", self.stop_token_ids),
            ("logit_bias", self.logit_bias),
            ("allowed_token_ids", self.allowed_token_ids or ()),
            ("bad_words", (token_id for ids in self.bad_words_token_ids for token_id in ids)),
        )

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature < GREEDY_EPS


def _check_range(name: str, value: float, low: float, high: float, *, low_open: bool = False) -> None:
    # Compared before anything else: a whole number beyond every float can't be converted, and NaN is within no range.
    if not (low < value if low_open else low <= value) or not value <= high:
        bracket = "(" if low_open else "["
        raise RequestError(f"{name} must be in {bracket}{low:g}, {high:g}], got {_shown(value)}", param=name)


def _check_int(name: str, value: int, low: int) -> None:
    if not low <= value <= _MAX_INT:
        raise RequestError(f"{name} must be a whole number in [{low}, {_MAX_INT}], got {_shown(value)}", param=name)


def _shown(value: float) -> str:
    """In full precision, so that a value just outside doesn't look like one inside; bounded."""
    if isinstance(value, int) and abs(value) >= 2**80:
        return f"a number of {value.bit_length()} bits"
    return repr(value)
