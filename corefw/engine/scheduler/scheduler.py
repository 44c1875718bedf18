"""The core's scheduler: every request has computed tokens and must catch up with its tokens. There are no phases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from corefw.config.engine_config import EngineConfig
from corefw.config.runtime_plan import RuntimePlan
from corefw.engine.kv_cache.hashing import BlockHasher
from corefw.engine.kv_cache.manager import KVCacheManager, PrefixHit
from corefw.engine.kv_cache.specs import SpecRegistry
from corefw.engine.request import Request, RequestStatus
from corefw.engine.scheduler.blocking import BlockedRequests, Blocker
from corefw.engine.scheduler.counters import Counters
from corefw.engine.scheduler.logprobs import LogprobsByRow, RowLogprobs
from corefw.engine.scheduler.step import StepBuilder
from corefw.engine.scheduler.stopping import check_stop
from corefw.engine.scheduler.waiting import WaitingQueue
from corefw.errors import ContextLengthError, PluginError, RequestError
from corefw.interfaces.kv_cache import KVCacheSpec
from corefw.interfaces.scheduler import Scheduler, SchedulerStrategy
from corefw.messages.outputs import (
    EngineCoreOutput,
    FinishReason,
    ModelRunnerOutput,
    PositionLogprobs,
    SchedulerStats,
)
from corefw.messages.request import EngineCoreRequest, PlainDict
from corefw.messages.scheduling import SchedulerOutput

if TYPE_CHECKING:
    from corefw.plugin_system.manager import PluginManager

__all__ = ["DefaultScheduler"]


class DefaultScheduler(Scheduler):
    """Running requests first, then admissions; preemption when blocks run out.

    A request is in exactly one of ``_waiting``, ``_blocked`` and ``_running``; ``_requests`` has them all.
    """

    name: ClassVar[str] = "default"

    def __init__(
        self,
        config: EngineConfig,
        plan: RuntimePlan,
        group_specs: Sequence[KVCacheSpec],
        plugins: PluginManager,
    ) -> None:
        self._limits = config.scheduler
        self._max_model_len = plan.max_model_len
        self._strategy: SchedulerStrategy = plugins.get("scheduler_strategies", config.scheduler.scheduling_policy)()
        caching = config.cache.enable_prefix_caching
        hasher = BlockHasher(plan.block_size, config.cache.prefix_caching_hash_algo) if caching else None
        self._kv = KVCacheManager(group_specs, SpecRegistry.from_plugins(plugins), plan.num_blocks, hasher)
        self._num_groups = len(group_specs)
        self._requests: dict[str, Request] = {}
        self._waiting = WaitingQueue(self._strategy)
        self._blocked = BlockedRequests()
        self._running: list[Request] = []
        # For the worker with the next step, and for the front end with the next update.
        self._finished_ids: list[str] = []
        self._pending_outputs: list[EngineCoreOutput] = []
        self._step = 0
        self._counters = Counters()

    # Requests come and go.

    def add_request(self, request: EngineCoreRequest) -> None:
        self._check(request)
        added = Request(request)
        stop = check_stop(added, self._max_model_len) if request.prior_output_ids else None
        self._requests[added.request_id] = added
        self._waiting.add(added)
        if stop:
            # Whoever had it before died between its last token and its end.
            self._pending_outputs.append(self._finish(added, stop.reason, stop_token_id=stop.token_id))

    def _check(self, request: EngineCoreRequest) -> None:
        pending_ids = (output.request_id for output in self._pending_outputs)
        if request.request_id in self._requests or request.request_id in pending_ids:
            raise RequestError(f"request id {request.request_id[:80]!r} is in use; ids must be unique")
        if request.params.n != 1:
            raise RequestError("the engine core takes n=1; split the request before", param="n")
        num_prompt_tokens = len(request.prompt_ids)
        if num_prompt_tokens == 0:
            raise RequestError("the prompt is empty; send at least one token", param="prompt")
        if num_prompt_tokens >= self._max_model_len:
            raise ContextLengthError(
                f"the prompt has {num_prompt_tokens} tokens and the context {self._max_model_len}; at least one token "
                f"must be left for the output, so shorten the prompt to {self._max_model_len - 1} tokens",
                param="prompt",
            )
        budget = self._limits.max_num_batched_tokens
        if not self._limits.enable_chunked_prefill and num_prompt_tokens > budget:
            raise RequestError(
                f"the prompt has {num_prompt_tokens} tokens, and without chunked prefill a step computes at most "
                f"{budget}; shorten it, or serve with --enable-chunked-prefill or a larger --max-num-batched-tokens",
                param="prompt",
            )

    def finish_requests(self, request_ids: Sequence[str], reason: FinishReason) -> list[EngineCoreOutput]:
        known = [
            self._requests[request_id] for request_id in dict.fromkeys(request_ids) if request_id in self._requests
        ]
        outputs = [self._finish(request, reason) for request in known]
        self._drop_finished()
        return outputs

    def block(self, request_id: str, blocker: Blocker) -> None:
        """Set a waiting request aside until its blocker is ready; it then takes its old place in the queue.

        Raises:
            EngineError: the request doesn't wait.
        """
        request = self._requests[request_id]
        request.move_to(RequestStatus.BLOCKED)
        self._waiting.remove(request)
        self._blocked.add(request, blocker)

    # A step.

    def schedule(self) -> SchedulerOutput:
        for request in self._blocked.take_ready():
            request.move_to(RequestStatus.WAITING)
            self._waiting.add(request)
        step = StepBuilder(self._limits.max_num_batched_tokens, self._num_groups)
        self._schedule_running(step)
        if not step.preempted_ids:
            self._admit_waiting(step)
        self._step += 1
        self._counters.num_steps += 1 if step.has_shares else 0
        finished_ids, self._finished_ids = self._finished_ids, []
        return step.build(self._step, finished_ids)

    def _schedule_running(self, step: StepBuilder) -> None:
        index = 0
        while index < len(self._running) and step.token_budget > 0:
            request = self._running[index]
            num_tokens = self._chunk(request, request.num_tokens - request.num_computed_tokens, step.token_budget)
            while (new_block_ids := self._kv.allocate_slots(request, num_tokens)) is None:
                index -= self._make_room(request, step)
                if request.status is not RequestStatus.RUNNING:
                    break
            else:
                step.add(request, num_tokens, new_block_ids)
                index += 1

    def _make_room(self, request: Request, step: StepBuilder) -> int:
        """Preempt one running request, perhaps this one. How many that had their share already are gone (0 or 1)."""
        if len(self._running) == 1:
            self._fail_alone(request)
            self._running.clear()
            return 0
        index = self._strategy.victim(self._running)
        if not 0 <= index < len(self._running):
            raise PluginError(
                f"scheduler strategy {self._strategy.name!r} named victim {index} of {len(self._running)} requests"
            )
        victim = self._running.pop(index)
        had_share = step.preempt(victim)
        self._kv.free(victim)
        victim.move_to(RequestStatus.PREEMPTED)
        victim.in_worker = False
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self._counters.num_preemptions += 1
        self._waiting.put_back(victim)
        return int(had_share)

    def _admit_waiting(self, step: StepBuilder) -> None:
        while step.token_budget > 0 and len(self._running) < self._limits.max_num_seqs:
            request = self._waiting.peek()
            if request is None or self._strategy.may_admit(request, len(self._running)) is not None:
                return
            hit = self._kv.get_computed_blocks(request)
            num_tokens = self._admission_chunk(request, hit, step.token_budget)
            if num_tokens == 0:
                return
            new_block_ids = self._allocate_whole(request, num_tokens, hit)
            if new_block_ids is not None:
                self._admit(request, hit)
                step.add(request, num_tokens, new_block_ids, self._kv.block_ids(request))
            elif self._running:
                return
            else:
                self._fail_alone(request)

    def _allocate_whole(self, request: Request, num_tokens: int, hit: PrefixHit) -> list[list[int]] | None:
        """Slots for a first chunk, but only if all known tokens fit beside the prefills that are on their way.

        Else two long prompts would be admitted, and preempt each other.
        """
        reserved = sum(self._kv.num_blocks_wanted(running, running.num_tokens) for running in self._running)
        wanted = self._kv.num_blocks_wanted(request, request.num_tokens, hit)
        if wanted + reserved > self._kv.pool.num_free_blocks:
            return None
        return self._kv.allocate_slots(request, num_tokens, hit)

    def _admit(self, request: Request, hit: PrefixHit) -> None:
        self._waiting.remove(request)
        request.move_to(RequestStatus.RUNNING)
        request.in_worker = True
        request.num_computed_tokens = hit.num_tokens
        self._running.append(request)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = min(hit.num_tokens, request.num_prompt_tokens)
            if self._kv.caches_prefixes:
                self._counters.count_lookup(request)

    def _chunk(self, request: Request, num_new_tokens: int, token_budget: int) -> int:
        if not self._limits.enable_chunked_prefill:
            return min(num_new_tokens, token_budget)
        return max(
            1, min(num_new_tokens, token_budget, self._strategy.chunk_tokens(request, num_new_tokens, token_budget))
        )

    def _admission_chunk(self, request: Request, hit: PrefixHit, token_budget: int) -> int:
        """Tokens of a request's first step; 0 when it has to wait for a step with more room.

        Without chunked prefill that is all or nothing, but for a request that has grown beyond a whole step's budget
        since it was accepted: it can only come back in chunks.
        """
        num_new_tokens = request.num_tokens - hit.num_tokens
        must_be_whole = (
            not self._limits.enable_chunked_prefill and num_new_tokens <= self._limits.max_num_batched_tokens
        )
        if must_be_whole and num_new_tokens > token_budget:
            return 0
        return self._chunk(request, num_new_tokens, token_budget)

    # A step's result.

    def update(self, scheduled: SchedulerOutput, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        outputs = self._take_pending()
        rows = {request_id: row for row, request_id in enumerate(result.request_ids)}
        logprobs = LogprobsByRow(result.logprobs)
        for request in self._still_running(scheduled):
            row = rows.get(request.request_id)
            sampled = [] if row is None else result.sampled_token_ids[row]
            error = result.failed.get(request.request_id)
            error = error or self._advance(request, scheduled.num_scheduled_tokens[request.request_id], len(sampled))
            if error:
                outputs.append(self._finish(request, FinishReason.ERROR, error=error))
            elif row is not None and sampled:
                extra = result.extra.get(request.request_id, {})
                outputs.append(self._take_tokens(request, sampled, logprobs.row(row), extra))
        self._drop_finished()
        return outputs

    def _advance(self, request: Request, num_tokens: int, num_sampled: int) -> str | None:
        """Count a step's tokens as computed. An error when the worker sampled where it shouldn't have, or didn't."""
        request.num_computed_tokens += num_tokens
        is_last_known = request.num_computed_tokens == request.num_tokens
        if (num_sampled > 0) != is_last_known:
            expected = "a token was due" if is_last_known else "the prompt isn't computed yet"
            return f"the worker sampled {num_sampled} tokens where {expected}"
        self._counters.count_computed(request, num_tokens)
        self._kv.cache_blocks(request)
        return None

    def _take_tokens(
        self, request: Request, sampled: Sequence[int], logprobs: RowLogprobs | None, extra: PlainDict
    ) -> EngineCoreOutput:
        """Append tokens up to the one that ends the output; what was sampled behind it is dropped."""
        taken: list[int] = []
        stop = None
        for token_id in sampled:
            request.token_ids.append(token_id)
            taken.append(token_id)
            stop = check_stop(request, self._max_model_len)
            if stop:
                break
        self._counters.num_generation_tokens += len(taken)
        num_logprobs = request.params.logprobs
        positions = None if num_logprobs is None or logprobs is None else logprobs.take(len(taken), num_logprobs)
        news = _News(taken, positions, extra)
        if stop:
            return self._finish(request, stop.reason, news, stop_token_id=stop.token_id)
        return _output(request, news)

    def fail_step(self, scheduled: SchedulerOutput, error: str) -> list[EngineCoreOutput]:
        outputs = self._take_pending()
        outputs += [
            self._finish(request, FinishReason.ERROR, error=error) for request in self._still_running(scheduled)
        ]
        self._drop_finished()
        # The worker may have failed before it forgot these; to be told twice doesn't hurt it.
        self._finished_ids += [*scheduled.finished_request_ids, *scheduled.preempted_request_ids]
        return outputs

    def _still_running(self, scheduled: SchedulerOutput) -> Iterable[Request]:
        """The step's requests, without those that ended while it ran."""
        for request_id in scheduled.num_scheduled_tokens:
            request = self._requests.get(request_id)
            if request is not None and request.status is RequestStatus.RUNNING:
                yield request

    # Ends.

    def _finish(
        self,
        request: Request,
        reason: FinishReason,
        news: _News | None = None,
        *,
        stop_token_id: int | None = None,
        error: str | None = None,
    ) -> EngineCoreOutput:
        """End a request and make its terminal output. A running one stays in ``_running`` until ``_drop_finished``."""
        if request in self._waiting:
            self._waiting.remove(request)
        elif request in self._blocked:
            self._blocked.remove(request)
        request.move_to(RequestStatus.finished(reason))
        self._kv.free(request)
        del self._requests[request.request_id]
        if request.in_worker:
            self._finished_ids.append(request.request_id)
        return _output(request, news or _News(), reason, stop_token_id, error)

    def _fail_alone(self, request: Request) -> None:
        """End a request that has the whole pool and still not enough."""
        num_blocks = len(self._kv.pool.blocks) - 1
        error = f"a sequence of {request.num_tokens} tokens needs more than the {num_blocks} blocks of the KV cache"
        self._pending_outputs.append(self._finish(request, FinishReason.ERROR, error=error))

    def _drop_finished(self) -> None:
        self._running = [request for request in self._running if not request.status.is_finished]

    def _take_pending(self) -> list[EngineCoreOutput]:
        outputs, self._pending_outputs = self._pending_outputs, []
        return outputs

    # State.

    def has_work(self) -> bool:
        queued = self._running or self._waiting or self._finished_ids or self._pending_outputs
        return bool(queued) or self._blocked.any_ready()

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting) + len(self._blocked),
            kv_usage=self._kv.pool.usage,
            **asdict(self._counters),
        )

    def reset_prefix_cache(self) -> bool:
        return self._kv.reset_prefix_cache()


class _News(NamedTuple):
    token_ids: list[int] = []
    logprobs: list[PositionLogprobs] | None = None
    extra: PlainDict = {}


def _output(
    request: Request,
    news: _News,
    reason: FinishReason | None = None,
    stop_reason: int | None = None,
    error: str | None = None,
) -> EngineCoreOutput:
    num_cached_tokens = None if request.has_output else request.num_cached_tokens or 0
    request.has_output = True
    return EngineCoreOutput(
        request_id=request.request_id,
        new_token_ids=news.token_ids,
        logprobs=news.logprobs,
        finish_reason=reason,
        stop_reason=stop_reason,
        num_cached_tokens=num_cached_tokens,
        error=error,
        extra=news.extra,
    )
