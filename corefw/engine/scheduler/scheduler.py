"""The core's scheduler: every request has computed tokens and must catch up with its tokens. There are no phases."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from corefw.config.engine_config import EngineConfig
from corefw.config.runtime_plan import RuntimePlan
from corefw.engine.kv_cache.events import KVEventRecorder
from corefw.engine.kv_cache.hashing import BlockHasher, KeySource, hash_algorithm
from corefw.engine.kv_cache.leases import Leases
from corefw.engine.kv_cache.manager import KVCacheManager, PrefixHit
from corefw.engine.kv_cache.plugins import collect_cache_plugins
from corefw.engine.kv_cache.request_view import RequestView
from corefw.engine.kv_cache.specs import SpecRegistry
from corefw.engine.kv_transfer.loads import Load
from corefw.engine.kv_transfer.transfers import ASK_AGAIN, make_transfers
from corefw.engine.request import Request, RequestStatus
from corefw.engine.scheduler.blocking import BlockedRequests, Blocker
from corefw.engine.scheduler.chunking import share_limit
from corefw.engine.scheduler.counters import Counters
from corefw.engine.scheduler.embeds import check_embeds
from corefw.engine.scheduler.intake import check_request
from corefw.engine.scheduler.logprobs import LogprobsByRow, RowLogprobs
from corefw.engine.scheduler.news import news_of
from corefw.engine.scheduler.observers import observers_of, show_step
from corefw.engine.scheduler.step import StepBuilder
from corefw.engine.scheduler.stopping import Stop, check_stop
from corefw.engine.scheduler.strategies import choose_strategies
from corefw.engine.scheduler.waiting import WaitingQueue
from corefw.errors import EngineError, RequestError
from corefw.interfaces.kv_cache import KVCacheSpec
from corefw.interfaces.scheduler import Scheduler
from corefw.messages.kv_events import KVEventBatch
from corefw.messages.outputs import EngineCoreOutput, ErrorKind, FinishReason, ModelRunnerOutput, SchedulerStats
from corefw.messages.request import EngineCoreRequest, PlainDict
from corefw.messages.scheduling import SchedulerOutput
from corefw.observability.logging import get_logger

if TYPE_CHECKING:
    from corefw.plugin_system.manager import PluginManager

__all__ = ["DefaultScheduler"]

_NO_EXTRA: PlainDict = {}
_NOT_LOADED = "the KV cache of this request could not be loaded from where it was kept; send it again"
_NOT_DELIVERED = "the KV cache of this request was lost before it was handed over; send it again"

_log = get_logger(__name__)


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
        self._config = config
        self._limits = config.scheduler
        self._max_model_len = plan.max_model_len
        self._vocab_size = config.model_info.vocab_size
        self._strategy = choose_strategies(config.scheduler, plugins)
        self._max_active = config.scheduler.max_num_active_seqs or config.scheduler.max_num_seqs
        self._events = KVEventRecorder() if config.cache.kv_events else None
        extensions = collect_cache_plugins(plugins, prefix_caching=config.cache.enable_prefix_caching)
        self._kv = KVCacheManager(
            group_specs,
            SpecRegistry.from_plugins(plugins),
            plan.num_blocks,
            _make_hasher(config, plan.block_size, extensions.key_sources),
            max_step_tokens=config.scheduler.max_num_batched_tokens,
            listeners=(*((self._events,) if self._events else ()), *extensions.listeners),
            eviction=extensions.eviction,
        )
        self._leases = Leases(extensions.lessors, self._kv.pool) if extensions.lessors else None
        self._transfers = make_transfers(config, plan, [spec.block_size for spec in group_specs], self._kv, plugins)
        self._num_watermark_blocks = int(config.scheduler.watermark * (plan.num_blocks - 1))
        self._num_groups = len(group_specs)
        self._requests: dict[str, Request] = {}
        self._waiting = WaitingQueue(self._strategy)
        self._strategy.on_order_lost.append(self._waiting.reorder)
        self._observers = observers_of(config, plugins)
        self._blocked = BlockedRequests()
        self._running: list[Request] = []
        self._any_ended = False
        # For the worker with the next step, and for the front end with the next update.
        self._finished_ids: list[str] = []
        self._pending_outputs: list[EngineCoreOutput] = []
        self._step = 0
        self._counters = Counters()

    # Requests come and go.

    def add_request(self, request: EngineCoreRequest) -> None:
        check_request(request, self._limits, self._max_model_len, self._vocab_size)
        check_embeds(request, self._config)
        pending_ids = (output.request_id for output in self._pending_outputs)
        is_transferred = self._transfers is not None and self._transfers.holds(request.request_id)
        if is_transferred or request.request_id in self._requests or request.request_id in pending_ids:
            raise RequestError(f"request id {request.request_id[:80]!r} is in use; ids must be unique")
        added = Request(request)
        self._requests[added.request_id] = added
        self._waiting.add(added)
        stop = check_stop(added, self._max_model_len) if request.prior_output_ids else None
        if stop:
            # Whoever had it before died between its last token and its end.
            self._pending_outputs.append(self._finish_unrun(added, stop))

    def _finish_unrun(self, request: Request, stop: Stop) -> EngineCoreOutput:
        if self._transfers is not None and self._transfers.requires_delivery:
            return self._finish(request, FinishReason.ERROR, error=_NOT_DELIVERED, kind=ErrorKind.CAPACITY)
        return self._finish(request, stop.reason, stop_reason=stop.token_id)

    def finish_requests(self, request_ids: Sequence[str], reason: FinishReason) -> list[EngineCoreOutput]:
        unique_ids = dict.fromkeys(request_ids)
        known = [self._requests[request_id] for request_id in unique_ids if request_id in self._requests]
        outputs = [self._finish(request, reason) for request in known]
        self._drop_ended()
        return outputs

    def block(self, request_id: str, blocker: Blocker) -> None:
        """Set a waiting request aside until its blocker is ready; it then takes its old place in the queue.

        Raises:
            EngineError: the request is unknown or doesn't wait.
        """
        request = self._requests.get(request_id)
        if request is None:
            raise EngineError(f"request {request_id[:80]!r} can't be blocked: it is unknown")
        self._set_aside(request, blocker)

    def _set_aside(self, request: Request, blocker: Blocker) -> None:
        request.move_to(RequestStatus.BLOCKED)
        self._waiting.remove(request)
        self._blocked.add(request, blocker)

    def blocked_reasons(self) -> dict[str, str]:
        """By id of each blocked request, what it waits for."""
        return self._blocked.reasons()

    # A step.

    def schedule(self) -> SchedulerOutput:
        if self._leases:
            self._leases.return_due()
        for request in self._blocked.take_ready():
            request.move_to(RequestStatus.WAITING)
            self._waiting.add(request)
        num_eligible = min(len(self._running) + len(self._waiting), self._max_active)
        max_share = share_limit(self._limits, num_eligible)
        step = StepBuilder(self._limits.max_num_batched_tokens, self._num_groups, max_share)
        self._schedule_running(step)
        if not step.preempted_ids:
            self._admit_waiting(step)
        self._step += 1
        finished_ids, self._finished_ids = self._finished_ids, []
        scheduled = step.build(self._step, finished_ids)
        self._counters.count_step(scheduled.total_num_scheduled_tokens)
        if self._observers:
            show_step(self._observers, scheduled, self.stats())
        return scheduled if self._transfers is None else self._transfers.with_metadata(scheduled)

    def _schedule_running(self, step: StepBuilder) -> None:
        index, running, allocate_slots = 0, self._running, self._kv.allocate_slots
        while index < len(running) and step.token_budget > 0:
            request = running[index]
            num_tokens = len(request.token_ids) - request.num_computed_tokens
            if num_tokens > 1:
                num_tokens = self._chunk(request, num_tokens, step)
            while (new_block_ids := allocate_slots(request, num_tokens)) is None:
                index -= self._make_room(request, step)
                if request.status is not RequestStatus.RUNNING:
                    break
            else:
                step.go_on(request, num_tokens, new_block_ids)
                index += 1

    def _make_room(self, request: Request, step: StepBuilder) -> int:
        """Preempt one running request, perhaps this one. Returns how many (0 or 1) before it left the running list."""
        if len(self._running) == 1 and self._give_back_loaded():
            return 0
        if len(self._running) == 1 and not self._others_hold_blocks(request):
            self._fail_alone(request)
            self._running.clear()
            return 0
        victim = self._running.pop(self._strategy.victim(self._running))
        had_share = step.take_back(victim)
        self._kv.free(victim)
        victim.move_to(RequestStatus.PREEMPTED)
        victim.num_computed_tokens = 0
        self._counters.num_preemptions += 1
        self._waiting.put_back(victim)
        return int(had_share)

    def _give_back_loaded(self) -> bool:
        """Take the blocks from a request that was loaded but doesn't run yet. Whether there was one."""
        request = self._transfers.give_back_loaded() if self._transfers is not None else None
        if request is None:
            return False
        self._kv.free(request)
        request.num_computed_tokens = 0
        return True

    def _others_hold_blocks(self, request: Request) -> bool:
        """Whether blocks will come free that no running or waiting request has: of transfers, of leases."""
        return self._kv.pool.num_used_blocks > len({block.block_id for block in self._kv.held_blocks(request)})

    def _admit_waiting(self, step: StepBuilder) -> None:
        if not self._waiting:
            return
        # Blocks that prefills on their way will still want.
        growing = self._running if self._transfers is None else [*self._running, *self._transfers.holders()]
        num_reserved = sum(self._kv.num_blocks_to_come(request) for request in growing)
        while step.token_budget > 0 and len(self._running) < self._max_active:
            request = self._waiting.peek()
            if request is None or self._strategy.may_admit(request, len(self._running)) is not None:
                return
            hit = self._kv.get_computed_blocks(request)
            if self._transfers is not None:
                found = self._transfers.look_up(request, hit)
                if found is None:
                    self._set_aside(request, ASK_AGAIN)
                    continue
                hit = found
                if request.num_computed_tokens:  # it is one of those that hold blocks
                    num_reserved -= self._kv.num_blocks_to_come(request)
            num_tokens = self._admission_chunk(request, hit, step)
            if num_tokens == 0:
                return
            if not self._has_room(request, num_tokens, hit, num_reserved):
                if self._running or not self._give_way(request, hit):
                    return
                continue
            self._admit(request, num_tokens, hit, step)
            num_reserved += self._kv.num_blocks_to_come(request)

    def _give_way(self, request: Request, hit: PrefixHit) -> bool:
        """Do something about a request that has no room though nothing runs. Whether to go on in this step."""
        if self._give_back_loaded() or self._others_hold_blocks(request):
            return False
        if hit.num_external and self._transfers is not None:
            self._transfers.forgo(request)
        else:
            self._fail_alone(request)
        return True

    def _has_room(self, request: Request, num_tokens: int, hit: PrefixHit, num_reserved: int) -> bool:
        """Whether a request fits beside those that run; all of it, or two long prompts would preempt each other."""
        if self._limits.full_sequence_must_fit:
            num_wanted = self._kv.num_blocks_to_come(request, hit)
        else:
            num_wanted = self._kv.num_blocks_wanted(request, hit.num_computed_tokens + num_tokens, hit)
        if hit.num_external:  # a window's external tokens take more blocks at once than it will hold
            num_wanted = max(num_wanted, self._kv.num_blocks_wanted(request, hit.num_computed_tokens + num_tokens, hit))
        num_kept_free = self._num_watermark_blocks if self._running else 0
        return num_wanted + num_reserved + num_kept_free <= self._kv.pool.num_free_blocks

    def _admit(self, request: Request, num_tokens: int, hit: PrefixHit, step: StepBuilder) -> None:
        waits = self._transfers is not None and self._transfers.waits_for(request, hit)
        new_block_ids = self._kv.allocate_slots(request, 0 if waits else num_tokens, hit)
        assert new_block_ids is not None, "a part of what fits as a whole doesn't fit"
        if self._transfers is not None:
            if waits:
                step.load(request, new_block_ids)
                self._set_aside(request, self._transfers.begin_waiting(request, hit))
                return
            self._transfers.started(request, hit)
        self._waiting.remove(request)
        request.move_to(RequestStatus.RUNNING)
        request.num_computed_tokens = hit.num_computed_tokens
        self._running.append(request)
        step.begin(request, num_tokens, new_block_ids, self._kv.block_ids(request))
        if request.num_cached_tokens is None:
            request.scheduled_s = time.monotonic()
            request.num_cached_tokens = min(hit.num_computed_tokens, request.num_prompt_tokens)
            if self._kv.caches_prefixes:
                self._counters.count_lookup(request)

    def _chunk(self, request: Request, num_new_tokens: int, step: StepBuilder) -> int:
        limit = min(step.token_budget, step.max_share)
        num_tokens = min(num_new_tokens, limit)
        if not self._limits.enable_chunked_prefill:
            return num_tokens
        return max(1, min(num_tokens, self._strategy.chunk_tokens(request, num_new_tokens, limit)))

    def _admission_chunk(self, request: Request, hit: PrefixHit, step: StepBuilder) -> int:
        """Tokens of a request's first step; 0 when it has to wait for a step with more room.

        Without chunked prefill that is all or nothing, but for a request that has grown beyond a whole step's budget
        since it was accepted: it can only come back in chunks.
        """
        num_new_tokens = request.num_tokens - hit.num_computed_tokens
        chunked = self._limits.enable_chunked_prefill or num_new_tokens > self._limits.max_num_batched_tokens
        if not chunked and num_new_tokens > step.token_budget:
            return 0
        return self._chunk(request, num_new_tokens, step)

    # A step's result.

    def update(self, scheduled: SchedulerOutput, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        outputs = self._take_pending()
        if self._transfers is not None:
            outputs += [failed for load in self._transfers.take(result.transfers) if (failed := self._lose(load))]
        rows = {request_id: row for row, request_id in enumerate(result.request_ids)}
        logprobs = LogprobsByRow(result.logprobs, result.full_logprobs)
        for request, num_tokens in self._still_running(scheduled):
            row = rows.get(request.request_id, -1)
            sampled = result.sampled_token_ids[row] if row >= 0 else []
            refusal = result.refused.get(request.request_id) if result.refused else None
            error = result.failed.get(request.request_id) if result.failed else None
            error = error or refusal or self._advance(request, num_tokens, len(sampled))
            if refusal:
                outputs.append(self._finish(request, FinishReason.ERROR, error=refusal, kind=ErrorKind.REQUEST))
            elif error:
                outputs.append(self._finish(request, FinishReason.ERROR, error=error))
            elif sampled:
                outputs.append(self._take_tokens(request, sampled, logprobs.row(row), result))
        self._drop_ended()
        return outputs

    def _lose(self, load: Load) -> EngineCoreOutput | None:
        """Let a request whose load failed start over with what it got; or end it, which its last output tells."""
        assert self._transfers is not None
        request = load.request
        if not self._transfers.recomputes(load):
            return self._finish(request, FinishReason.ERROR, error=_NOT_LOADED, kind=ErrorKind.CAPACITY)
        request.num_computed_tokens = load.stop
        self._kv.cache_blocks(request)
        self._kv.free(request)
        request.num_computed_tokens = 0
        if not request.has_output:
            request.num_cached_tokens = None
        if request.status is RequestStatus.BLOCKED:
            self._blocked.remove(request)
            request.move_to(RequestStatus.WAITING)
            self._waiting.add(request)
        else:
            request.move_to(RequestStatus.PREEMPTED)
            self._waiting.put_back(request)
            self._any_ended = True
            self._finished_ids.append(request.request_id)  # the worker gets it anew
        return None

    def _advance(self, request: Request, num_tokens: int, num_sampled: int) -> str | None:
        """Count a step's tokens as computed. An error when the worker sampled where it shouldn't have, or didn't."""
        request.num_computed_tokens += num_tokens
        is_due = request.num_computed_tokens == len(request.token_ids)
        if (num_sampled > 0) != is_due:
            expected = "one was due" if is_due else "known tokens were still to be computed"
            return f"the worker sampled {num_sampled} tokens when {expected}"
        self._counters.count_computed(request, num_tokens)
        self._kv.cache_blocks(request)
        return None

    def _take_tokens(
        self, request: Request, sampled: list[int], logprobs: RowLogprobs | None, result: ModelRunnerOutput
    ) -> EngineCoreOutput:
        taken, stop = self._append(request, sampled)
        self._counters.num_generation_tokens += len(taken)
        num_logprobs = request.params.logprobs
        extra = result.extra.get(request.request_id, _NO_EXTRA)
        if stop:
            extra = {**extra, **self._end(request, stop.reason)}
        return news_of(
            request,
            taken,
            logprobs=logprobs.take(len(taken), num_logprobs) if logprobs and num_logprobs is not None else None,
            finish_reason=stop.reason if stop else None,
            stop_reason=stop.token_id if stop else None,
            prompt_logprobs=result.prompt_logprobs.get(request.request_id),
            extra=extra,
        )

    def _append(self, request: Request, sampled: list[int]) -> tuple[list[int], Stop | None]:
        """Append tokens up to the one that ends the output; what was sampled behind it is dropped."""
        if request.params.max_tokens == 0:  # the prompt was only to be scored
            return [], Stop(FinishReason.LENGTH)
        for count, token_id in enumerate(sampled, start=1):
            request.token_ids.append(token_id)
            stop = check_stop(request, self._max_model_len)
            if stop:
                return sampled[:count], stop
        return sampled, None

    def fail_step(self, scheduled: SchedulerOutput, error: str) -> list[EngineCoreOutput]:
        outputs = self._take_pending()
        for request, _ in self._still_running(scheduled):
            outputs.append(self._finish(request, FinishReason.ERROR, error=error))
        self._drop_ended()
        # The worker may have failed before it forgot these; to be told twice doesn't hurt it.
        again = [*scheduled.finished_request_ids, *scheduled.preempted_request_ids]
        self._finished_ids = list(dict.fromkeys([*self._finished_ids, *again]))
        return outputs

    def _still_running(self, scheduled: SchedulerOutput) -> Iterator[tuple[Request, int]]:
        """The step's requests with their tokens, without those that ended while it ran."""
        requests, running = self._requests, RequestStatus.RUNNING
        for request_id, num_tokens in scheduled.num_scheduled_tokens.items():
            request = requests.get(request_id)
            if request is not None and request.status is running:
                yield request, num_tokens

    # Ends.

    def _finish(
        self,
        request: Request,
        reason: FinishReason,
        *,
        stop_reason: int | None = None,
        error: str | None = None,
        kind: ErrorKind = ErrorKind.ENGINE,
    ) -> EngineCoreOutput:
        """End a request without a token; returns its terminal output."""
        extra = self._end(request, reason)
        return news_of(
            request, [], finish_reason=reason, stop_reason=stop_reason, error=error, error_kind=kind, extra=extra
        )

    def _end(self, request: Request, reason: FinishReason) -> PlainDict:
        """End a request; returns what its last output carries. A running one stays in ``_running`` until
        ``_drop_ended``."""
        if request in self._waiting:
            self._waiting.remove(request)
        elif request in self._blocked:
            self._blocked.remove(request)
        request.move_to(RequestStatus.finished(reason))
        extra = self._transfers.ended(request, reason) if self._transfers is not None else _NO_EXTRA
        if self._leases is not None and request.num_slots:
            self._leases.offer(RequestView(request, self._kv), reason, self._kv.held_blocks(request))
        self._kv.free(request)
        self._any_ended = True
        del self._requests[request.request_id]
        self._finished_ids.append(request.request_id)
        return extra

    def _fail_alone(self, request: Request) -> None:
        """End a request that has the whole pool to itself and still not enough."""
        num_blocks = len(self._kv.pool.blocks) - 1
        error = f"a sequence of {request.num_tokens} tokens needs more than the {num_blocks} blocks of the KV cache"
        self._pending_outputs.append(self._finish(request, FinishReason.ERROR, error=error))

    def _drop_ended(self) -> None:
        if self._any_ended:
            self._running = [request for request in self._running if request.status is RequestStatus.RUNNING]
            self._any_ended = False

    def _take_pending(self) -> list[EngineCoreOutput]:
        outputs, self._pending_outputs = self._pending_outputs, []
        return outputs

    # State.

    def has_work(self) -> bool:
        queued = self._running or self._waiting or self._finished_ids or self._pending_outputs
        transferring = self._transfers is not None and self._transfers.in_progress
        return bool(queued) or transferring or self._blocked.any_ready()

    def stats(self) -> SchedulerStats:
        num_waiting = len(self._waiting) + len(self._blocked)
        return self._counters.stats(len(self._running), num_waiting, self._kv.pool.usage)

    def reset_prefix_cache(self) -> bool:
        done = self._kv.reset_prefix_cache()
        if done and self._transfers is not None:
            self._transfers.cache_reset()
        return done

    def receive_handshakes(self, handshakes: Sequence[PlainDict | None]) -> None:
        if self._transfers is not None:
            self._transfers.receive_handshakes(handshakes)

    def shutdown(self) -> None:
        if self._transfers is not None:
            self._transfers.shutdown()

    def take_kv_events(self) -> KVEventBatch | None:
        return self._events.take() if self._events else None


def _make_hasher(config: EngineConfig, block_size: int, sources: Sequence[KeySource]) -> BlockHasher | None:
    if not config.cache.enable_prefix_caching:
        return None
    algorithm = hash_algorithm(config.cache.prefix_caching_hash_algo)
    if config.cache.kv_events and not algorithm.is_reproducible:
        _log.warning(
            "KV events carry hashes that no other process can make: %s has a random seed here; set PYTHONHASHSEED to "
            "the same number everywhere, or use --prefix-caching-hash-algo sha256",
            algorithm.name,
        )
    return BlockHasher(block_size, algorithm, sources)
