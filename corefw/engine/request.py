"""One request as the scheduler sees it: its tokens, how many of them are computed, and where it stands."""

from __future__ import annotations

import sys
from enum import Enum

from corefw.errors import EngineError
from corefw.messages.outputs import FinishReason
from corefw.messages.request import EngineCoreRequest

__all__ = ["Request", "RequestStatus"]


class RequestStatus(Enum):
    """Where a request stands. Which moves are legal is written down in ``_TRANSITIONS``."""

    WAITING = "waiting"
    BLOCKED = "blocked"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_STOP = "finished: stop"
    FINISHED_LENGTH = "finished: length"
    FINISHED_ABORT = "finished: abort"
    FINISHED_ERROR = "finished: error"

    @property
    def is_finished(self) -> bool:
        """Whether nothing can follow."""
        return self in _ENDS

    @classmethod
    def finished(cls, reason: FinishReason) -> RequestStatus:
        """The status of a request that ended for that reason."""
        return _FINISHED[reason]


_FINISHED = {
    FinishReason.STOP: RequestStatus.FINISHED_STOP,
    FinishReason.LENGTH: RequestStatus.FINISHED_LENGTH,
    FinishReason.ABORT: RequestStatus.FINISHED_ABORT,
    FinishReason.ERROR: RequestStatus.FINISHED_ERROR,
}
_ENDS = frozenset(_FINISHED.values())

_TRANSITIONS: dict[RequestStatus, frozenset[RequestStatus]] = {
    RequestStatus.WAITING: _ENDS | {RequestStatus.BLOCKED, RequestStatus.RUNNING},
    RequestStatus.BLOCKED: _ENDS | {RequestStatus.WAITING},
    RequestStatus.RUNNING: _ENDS | {RequestStatus.PREEMPTED},
    RequestStatus.PREEMPTED: _ENDS | {RequestStatus.BLOCKED, RequestStatus.RUNNING},
    **{end: frozenset() for end in _ENDS},
}


class Request:
    """A sequence to continue. Owned by one scheduler; nobody else changes it.

    Attributes:
        token_ids: prompt, then every output token, prior ones included. The only list of them; it only grows.
        num_computed_tokens: leading tokens whose KV lies in the request's blocks.
        num_prompt_tokens: tokens of the prompt.
        num_prior_tokens: output tokens that were produced elsewhere and are never sent out again.
        num_in_flight_tokens: tokens behind the computed ones that steps on their way compute; not counted where
            only one step is on its way at a time.
        num_placeholders: output tokens that those steps will bring and that the next one takes as given.
        num_told_tokens: leading tokens that every pipeline stage knows; counted only with several stages.
        num_cached_tokens: prompt tokens found in the prefix cache at the first admission; None before it.
        block_hashes: chained hashes of the leading full hash blocks, as far as they were needed.
        num_slots: tokens that its blocks have room for, and
        next_block_end: computed tokens with which its next block is full; both the KV-cache manager's.
        turn: place among waiting requests with the same key; None before the request first waits.
        last_ids: tokens that end the output, if it is long enough; the model's and the client's together.
        length_limit: tokens, the prompt's included, at which it ends whatever they are: the client's limit, or the
            scheduler's.
        status: where it stands; changed by ``move_to`` alone.
        has_output: whether an output has gone out.
        scheduled_s: when its first step was put together, on the monotonic clock; None before it.
    """

    __slots__ = (
        "arrival_s",
        "block_hashes",
        "cache_salt",
        "end_ids",
        "eos_ids",
        "extra",
        "has_output",
        "last_ids",
        "length_limit",
        "next_block_end",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_in_flight_tokens",
        "num_placeholders",
        "num_prior_tokens",
        "num_prompt_tokens",
        "num_slots",
        "num_told_tokens",
        "params",
        "priority",
        "prompt_embeds",
        "prompt_ids",
        "request_id",
        "scheduled_s",
        "status",
        "stop_ids",
        "token_ids",
        "turn",
    )

    def __init__(self, raw: EngineCoreRequest) -> None:
        self.request_id = raw.request_id
        self.prompt_ids = raw.prompt_ids
        self.prompt_embeds = raw.prompt_embeds
        self.params = raw.params
        self.eos_ids = raw.eos_ids
        self.arrival_s = raw.arrival_s
        self.priority = raw.priority
        self.cache_salt = raw.cache_salt
        self.extra = raw.extra
        self.end_ids = frozenset() if raw.params.ignore_eos else frozenset(raw.eos_ids)
        self.stop_ids = frozenset(raw.params.stop_token_ids)
        self.last_ids = self.end_ids | self.stop_ids
        self.token_ids = [*raw.prompt_ids, *raw.prior_output_ids]
        self.num_prompt_tokens = len(raw.prompt_ids)
        max_tokens = raw.params.max_tokens
        self.length_limit = sys.maxsize if max_tokens is None else self.num_prompt_tokens + max_tokens
        self.num_prior_tokens = len(raw.prior_output_ids)
        self.num_computed_tokens = 0
        self.num_in_flight_tokens = 0
        self.num_placeholders = 0
        self.num_told_tokens = 0
        self.num_cached_tokens: int | None = None
        self.block_hashes: list[bytes] = []
        self.num_slots = 0
        self.next_block_end = 0
        self.turn: int | None = None
        self.has_output = False
        self.scheduled_s: float | None = None
        self.status = RequestStatus.WAITING

    def __repr__(self) -> str:
        progress = f"{self.num_computed_tokens}/{self.num_tokens}"
        return f"Request({self.request_id!r}, {self.status.value}, computed {progress})"

    def move_to(self, status: RequestStatus) -> None:
        """Change the status.

        Raises:
            EngineError: there is no such way.
        """
        if status not in _TRANSITIONS[self.status]:
            raise EngineError(f"request {self.request_id[:80]} can't go from {self.status.value} to {status.value}")
        self.status = status

    @property
    def reads_prefix_cache(self) -> bool:
        """Not while log-probabilities of the prompt are due: they come from computing it."""
        return self.params.prompt_logprobs is None or self.num_output_tokens > 0

    @property
    def num_tokens(self) -> int:
        """Tokens known: prompt and outputs."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Output tokens so far, prior ones included."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_ids(self) -> list[int]:
        """A copy of the output tokens so far, prior ones included."""
        return self.token_ids[self.num_prompt_tokens :]
