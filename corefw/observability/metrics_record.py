"""One request's figures: when its tokens came, how each of its sequences ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["FinishedSequence", "PromptRecord", "RecordSink", "RequestRecord", "Times", "Update"]


class Update(Protocol):
    """What is read of a sequence's news."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_cached_tokens(self) -> int: ...


class Times(Protocol):
    """What the engine says of a sequence, in seconds of the machine's monotonic clock."""

    @property
    def scheduled_s(self) -> float: ...
    @property
    def first_token_s(self) -> float | None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedSequence:
    """What is known of a sequence that ended. Times are in seconds; None is what never happened or nobody told.

    Attributes:
        finish_reason: stop, length, abort or error.
        num_prompt_tokens, num_cached_tokens, num_generation_tokens: as in the answer's usage.
        e2e_s: from the request's arrival to the end.
        time_to_first_token_s: from the request's arrival.
        queue_s: from handing it to the engine to its first step.
        prefill_s: from its first step to its first token.
        decode_s: from its first token to its last.
        inference_s: prefill and decode.
        time_per_output_token_s: mean time between two tokens.
    """

    finish_reason: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generation_tokens: int
    e2e_s: float
    time_to_first_token_s: float | None
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    inference_s: float | None
    time_per_output_token_s: float | None


class RecordSink(Protocol):
    """Where figures go."""

    def first_token(self, seconds: float) -> None:
        """A sequence has its first token."""

    def more_tokens(self, seconds: float, num_tokens: int) -> None:
        """So many tokens came, each this long after the one before."""

    def ended(self, sequence: FinishedSequence) -> None:
        """A sequence has ended."""

    def prompt_ended(self, n: int, max_tokens: int | None, num_longest: int) -> None:
        """All sequences of a prompt have ended."""


class _Sequence:
    __slots__ = ("first_s", "last_s", "num_cached", "num_tokens", "times")

    def __init__(self) -> None:
        self.first_s: float | None = None
        self.last_s = 0.0
        self.num_tokens = 0
        self.num_cached = 0
        self.times: Times | None = None


class RequestRecord:
    """Follows the sequences of one request; each is counted exactly once, whatever its end.

    Args:
        sink: gets the figures.
        prompt_lengths: tokens of each prompt.
        n: sequences a prompt.
        max_tokens: the request's parameter.
        arrival_s: when the request came, on the clock.
        clock: monotonic, the one that the engine tells times on.

    Attributes:
        finished: every sequence that has ended, in the order of the ends.
    """

    def __init__(
        self,
        sink: RecordSink,
        prompt_lengths: Sequence[int],
        n: int,
        max_tokens: int | None,
        arrival_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.finished: list[FinishedSequence] = []
        submitted_s = clock()
        self._prompts = [
            PromptRecord(sink, length, n, max_tokens, (arrival_s, submitted_s), clock, self.finished)
            for length in prompt_lengths
        ]

    def prompt(self, position: int) -> PromptRecord:
        """The record of one prompt."""
        return self._prompts[position]

    @property
    def num_prompt_tokens(self) -> int:
        """Of all prompts, each counted once."""
        return sum(prompt.num_tokens for prompt in self._prompts)

    def close(self, reason: str) -> None:
        """Count what hasn't ended by itself. May be called again."""
        for prompt in self._prompts:
            prompt.close(reason)


class PromptRecord:
    """Follows the n sequences of one prompt.

    Attributes:
        num_tokens: of the prompt.
    """

    __slots__ = (
        "_arrival_s",
        "_clock",
        "_finished",
        "_longest",
        "_params",
        "_running",
        "_sink",
        "_start_s",
        "num_tokens",
    )

    def __init__(
        self,
        sink: RecordSink,
        length: int,
        n: int,
        max_tokens: int | None,
        started: tuple[float, float],
        clock: Callable[[], float],
        finished: list[FinishedSequence],
    ) -> None:
        self._sink = sink
        self.num_tokens = length
        self._params = n, max_tokens
        self._arrival_s, self._start_s = started
        self._clock = clock
        self._finished = finished
        self._longest = 0
        self._running = {index: _Sequence() for index in range(n)}

    def saw(self, index: int, update: Update, times: Times | None) -> None:
        """News of a sequence, at the moment they came; what comes after its end is ignored.

        Tokens that come together share the time since the ones before, so that the gaps of a sequence add up to the
        time from its first token to its last, and their number is that of its tokens less one. Behind a first token
        that doesn't come alone there is no time to share: those gaps are 0.
        """
        sequence = self._running.get(index)
        if sequence is None:
            return
        if times is not None:
            sequence.times = times
        num_tokens = len(update.token_ids)
        if num_tokens:
            now_s = self._clock()
            if sequence.first_s is None:
                self._begin(sequence, now_s, num_tokens)
            else:
                self._sink.more_tokens((now_s - sequence.last_s) / num_tokens, num_tokens)
            sequence.last_s = now_s
            sequence.num_tokens += num_tokens
        if update.finish_reason is not None:
            self.num_tokens = update.num_prompt_tokens
            sequence.num_cached = update.num_cached_tokens
            self._end(index, str(update.finish_reason))

    def _begin(self, sequence: _Sequence, now_s: float, num_tokens: int) -> None:
        sequence.first_s = now_s
        self._sink.first_token(now_s - self._arrival_s)
        if num_tokens > 1:
            self._sink.more_tokens(0.0, num_tokens - 1)

    def close(self, reason: str) -> None:
        """Count what hasn't ended by itself. May be called again."""
        for index in tuple(self._running):
            self._end(index, reason)

    def _end(self, index: int, reason: str) -> None:
        sequence = self._running.pop(index)
        self._longest = max(self._longest, sequence.num_tokens)
        finished = self._figures(sequence, reason)
        self._finished.append(finished)
        self._sink.ended(finished)
        if not self._running:
            self._sink.prompt_ended(*self._params, self._longest)

    def _figures(self, sequence: _Sequence, reason: str) -> FinishedSequence:
        times, first_s = sequence.times, sequence.first_s
        queue_s = None if times is None else max(0.0, times.scheduled_s - self._start_s)
        prefill_s = None
        if times is not None and times.first_token_s is not None:
            prefill_s = times.first_token_s - times.scheduled_s
        decode_s = None if first_s is None else sequence.last_s - first_s
        num_gaps = sequence.num_tokens - 1
        is_known = prefill_s is not None and decode_s is not None
        return FinishedSequence(
            finish_reason=reason,
            num_prompt_tokens=self.num_tokens,
            num_cached_tokens=sequence.num_cached,
            num_generation_tokens=sequence.num_tokens,
            e2e_s=self._clock() - self._arrival_s,
            time_to_first_token_s=None if first_s is None else first_s - self._arrival_s,
            queue_s=queue_s,
            prefill_s=prefill_s,
            decode_s=decode_s,
            inference_s=(prefill_s or 0.0) + (decode_s or 0.0) if is_known else None,
            time_per_output_token_s=None if decode_s is None or num_gaps < 1 else decode_s / num_gaps,
        )
