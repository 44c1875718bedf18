"""What the scheduler tells the executor for one step: complete, immutable, a diff against the step before."""

from __future__ import annotations

import msgspec

from corefw.messages.request import EmbeddingSpan, PlainDict
from corefw.messages.sampling import SamplingParams

__all__ = ["CachedRequests", "NewRequest", "SchedulerOutput"]


class NewRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that the worker doesn't hold: new, resumed after a preemption, or moved here.

    Attributes:
        request_id: unique id.
        prompt_ids: the whole prompt.
        output_ids: every output token so far (prior ones included).
        params: sampling parameters.
        eos_ids: the model's end tokens, for ``min_tokens``.
        block_ids: one list a KV-cache group; every block that the request holds, in token order.
        num_computed_tokens: tokens whose KV is already in the blocks (prefix-cache hits).
        extra: plain data for plugins.
        prompt_embeds: see ``EngineCoreRequest``.
    """

    request_id: str
    prompt_ids: list[int]
    output_ids: list[int]
    params: SamplingParams
    eos_ids: tuple[int, ...]
    block_ids: list[list[int]]
    num_computed_tokens: int
    extra: PlainDict = {}
    prompt_embeds: tuple[EmbeddingSpan, ...] = ()


class CachedRequests(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that the worker holds already, as columns of equal length.

    Attributes:
        request_ids: ids, in the scheduler's running order.
        num_computed_tokens: position at which this step starts, a request.
        num_output_tokens: output tokens that the scheduler knows of, or counts on as steps before this one bring them,
            a request (the worker's own must agree).
        new_block_ids: a request: one list a KV-cache group of blocks to append.
        new_token_ids: a request: its output tokens since its last step, for pipeline stages that didn't sample them;
            empty without such stages.
    """

    request_ids: list[str]
    num_computed_tokens: list[int]
    num_output_tokens: list[int]
    new_block_ids: list[list[list[int]]]
    new_token_ids: list[list[int]] = []


class SchedulerOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One step's work.

    Attributes:
        step: counts up from 1.
        new_requests: requests to add to the batch before the step.
        cached_requests: requests of the batch that go on in this step.
        num_scheduled_tokens: tokens to compute in this step, by request id; every value is at least 1. A request
            whose last known token is computed in this step gets one sampled token; the others get none.
        total_num_scheduled_tokens: sum of these.
        finished_request_ids: requests to forget before anything else (finished or aborted since the step before). The
            worker may not hold them (never admitted, preempted before); after a step that failed an id may come again.
        preempted_request_ids: requests to forget that will come back as new ones.
        block_ids_to_zero: one list a KV-cache group of blocks to clear before the step writes to them.
        kv_transfer: what the KV connector's halves tell each other; None without a connector.
    """

    step: int
    new_requests: list[NewRequest]
    cached_requests: CachedRequests
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    finished_request_ids: list[str]
    preempted_request_ids: list[str]
    block_ids_to_zero: list[list[int]]
    kv_transfer: PlainDict | None = None
