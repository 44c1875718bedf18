"""Sampling parameters: what a request may ask of the sampler, checked at construction."""

from __future__ import annotations

import msgspec

from corefw.errors import RequestError

__all__ = ["GREEDY_EPS", "MAX_SEED", "SamplingParams"]

# Temperatures below this are greedy. One constant for both meanings: choosing greedy rows, and never dividing by ~0.
GREEDY_EPS = 1e-5
_MAX_INT = 2**63 - 1  # what a message can carry
MAX_SEED = _MAX_INT
_MAX_TEMPERATURE = 100.0


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next tokens are chosen and when they end.

    Attributes:
        n: number of independent outputs. The front end splits a request with n > 1; the core sees only n = 1.
        temperature: 0 (or anything below ``GREEDY_EPS``) is greedy.
        top_p: keep the smallest set of most likely tokens with at least this mass, in (0, 1].
        top_k: keep the k most likely tokens; 0 keeps all.
        min_p: drop tokens less likely than this share of the most likely one, in [0, 1].
        seed: makes the output reproducible; the front end fills in a random one where it is None.
        max_tokens: at most this many output tokens; None means up to the context's end.
        min_tokens: no end of sequence, stop token or stop string before this many output tokens.
        stop: stop strings; the output ends before the one that completes first.
        stop_token_ids: token ids that end the output.
        ignore_eos: the model's own end tokens don't end the output (``stop_token_ids`` still do).
        logprobs: return the log-probability of each chosen token and of this many most likely ones.
        include_stop_str_in_output: keep the stop string that ended the output.
        skip_special_tokens: leave control tokens out of the text.

    Raises:
        RequestError: a value is out of range; ``param`` names the field.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        _check_range("temperature", self.temperature, 0.0, _MAX_TEMPERATURE)
        _check_range("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_int("n", self.n, 1)
        _check_int("top_k", self.top_k, 0)
        _check_int("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1)
            if self.min_tokens > self.max_tokens:
                raise RequestError(
                    f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})", param="min_tokens"
                )
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0)
        if self.seed is not None and not -MAX_SEED - 1 <= self.seed <= MAX_SEED:
            raise RequestError("seed must fit a signed 64-bit integer", param="seed")
        if any(not text for text in self.stop):
            raise RequestError("a stop string must not be empty; leave it out instead", param="stop")
        if any(not 0 <= token_id <= _MAX_INT for token_id in self.stop_token_ids):
            raise RequestError(f"stop_token_ids must be in [0, {_MAX_INT}]", param="stop_token_ids")

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
