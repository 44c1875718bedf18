"""What comes back: from the model runner to the scheduler, and from the core to the front end."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from corefw.messages.arrays import Array
from corefw.messages.control import WaveReport
from corefw.messages.events import PluginEvent
from corefw.messages.kv_transfer import TransferResults
from corefw.messages.request import PlainDict

__all__ = [
    "EngineCoreOutput",
    "EngineCoreOutputs",
    "ErrorKind",
    "FinishReason",
    "ModelRunnerOutput",
    "PositionLogprobs",
    "PromptLogprobs",
    "RequestTimes",
    "SchedulerStats",
    "StepLogprobs",
    "UtilityResult",
]


class FinishReason(StrEnum):
    """Why a request ended; the values are those of the OpenAI API where it has one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class ErrorKind(StrEnum):
    """Whose fault a failed request is: the client's, nobody's (there is no room now), or ours."""

    REQUEST = "request"
    CAPACITY = "capacity"
    ENGINE = "engine"


class StepLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of one step's sampled tokens, for the rows that asked for them.

    Attributes:
        rows: index into ``ModelRunnerOutput.request_ids``, one a row.
        token_ids: int32 [rows, 1 + k]; column 0 is the sampled token, then the k most likely ones, k the step's
            largest wish; a row that wished for fewer uses its first columns.
        logprobs: float32 [rows, 1 + k], natural logs of the unprocessed distribution, or what ``--logprobs-mode`` says.
        ranks: int32 [rows]; rank of the sampled token, 1 is the most likely.
    """

    rows: list[int]
    token_ids: Array
    logprobs: Array
    ranks: Array


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of a prompt's tokens from the second on: P - 1 positions.

    Attributes:
        token_ids: int32 [P - 1, 1 + k]; column 0 is the prompt's token, then the k most likely ones.
        logprobs: float32 [P - 1, 1 + k], same order.
        ranks: int32 [P - 1]; rank of the prompt's token, 1 is the most likely.
    """

    token_ids: Array
    logprobs: Array
    ranks: Array


class ModelRunnerOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One step's result.

    Attributes:
        request_ids: the batch's requests in row order.
        sampled_token_ids: one list a row; empty while the request still catches up with its known tokens.
        logprobs: for the rows that asked for a number of them.
        full_logprobs: for the rows that asked for the whole vocabulary.
        prompt_logprobs: by request id, with the first output token of a request that asked for them.
        extra: by request id, plain data that plugins send back.
        failed: by request id, why this request alone failed in the step.
        refused: the same where the request's own parameters are at fault.
        events: what plugins of the worker told since the step before.
        num_dropped_events: for how many more there was no room.
        transfers: what the KV connector has to tell, at most one a rank.
    """

    request_ids: list[str]
    sampled_token_ids: list[list[int]]
    logprobs: StepLogprobs | None = None
    full_logprobs: StepLogprobs | None = None
    prompt_logprobs: dict[str, PromptLogprobs] = {}
    extra: dict[str, PlainDict] = {}
    failed: dict[str, str] = {}
    refused: dict[str, str] = {}
    events: list[PluginEvent] = []
    num_dropped_events: int = 0
    transfers: tuple[TransferResults, ...] = ()


class PositionLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probabilities at one output position.

    Attributes:
        token_ids: the chosen token, then the most likely ones in falling order (the chosen one may repeat).
        logprobs: natural logs, same order.
        rank: rank of the chosen token, 1 is the most likely.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int


class RequestTimes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """When a request reached its stations: ``time.monotonic()`` of the core, which its machine's processes share.

    Attributes:
        scheduled_s: its first step was put together, whatever preempted it afterwards.
        first_token_s: its first token was there; None when it ended without one.
    """

    scheduled_s: float
    first_token_s: float | None = None


class EngineCoreOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """News of one request. Every request ends in exactly one output with a ``finish_reason``.

    Attributes:
        request_id: which.
        new_token_ids: tokens since the last output.
        logprobs: one entry a new token, if asked for.
        prompt_logprobs: on the first output, if asked for.
        finish_reason: set on the last output.
        stop_reason: the stop token id that ended it; None for an end token, a limit or an abort.
        num_cached_tokens: prompt tokens taken from the prefix cache, set on the first output.
        times: on the first output of a request that has run.
        error: with ``FinishReason.ERROR``: what happened, fit for the client.
        error_kind: whose fault that is.
        extra: plain data of plugins.
    """

    request_id: str
    new_token_ids: list[int] = []
    logprobs: list[PositionLogprobs] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    num_cached_tokens: int | None = None
    times: RequestTimes | None = None
    error: str | None = None
    error_kind: ErrorKind = ErrorKind.ENGINE
    extra: PlainDict = {}


class SchedulerStats(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges at the end of a step, and counters since the start.

    Attributes:
        num_running: requests that hold a batch slot.
        num_waiting: requests that wait, blocked ones included.
        kv_usage: share of KV blocks in use, 0 to 1; cached blocks that nobody uses count as free.
        num_preemptions: since the start.
        prefix_queries_tokens: prompt tokens looked up in the prefix cache since the start.
        prefix_hits_tokens: of these, found.
        num_prompt_tokens: prompt tokens computed since the start.
        num_generation_tokens: output tokens since the start.
        num_steps: steps since the start.
        num_step_tokens: tokens that they computed, prompt and output.
        step_token_counts: how many of these steps had how many tokens: one count for each of ``STEP_TOKEN_BOUNDS`` and
            one for the steps above the last; empty where nobody counts.
        num_restarts: times that the engine died and another one was to take its place.
        engines: the same of each engine, where these figures are the sums of several.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0
    num_preemptions: int = 0
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    num_steps: int = 0
    num_step_tokens: int = 0
    step_token_counts: tuple[int, ...] = ()
    num_restarts: int = 0
    engines: tuple[SchedulerStats, ...] = ()


class UtilityResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to a remote call by name. ``value`` is plain data; ``error`` is set instead when it failed, and
    ``error_kind`` says whose fault that was."""

    call_id: int
    value: Any = None
    error: str | None = None
    error_kind: ErrorKind = ErrorKind.ENGINE


class EngineCoreOutputs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message from the core: news of many requests, the step's gauges, answers to calls, plugins' events.

    ``wave`` is for the coordinator of engines that compute together.
    """

    outputs: list[EngineCoreOutput] = []
    stats: SchedulerStats | None = None
    utility: UtilityResult | None = None
    wave: WaveReport | None = None
    events: list[PluginEvent] = []
    num_dropped_events: int = 0
