"""The core's scheduler: every request has computed tokens and must catch up with its tokens. There are no phases."""

from __future__ import annotations

import time
from typing import ClassVar

from corefw.engine.kv_cache.manager import PrefixHit
from corefw.engine.kv_transfer.loads import Load
from corefw.engine.kv_transfer.transfers import ASK_AGAIN
from corefw.engine.request import Request, RequestStatus
from corefw.engine.scheduler.chunking import share_limit
from corefw.engine.scheduler.logprobs import RowLogprobs, logprobs_by_id
from corefw.engine.scheduler.news import news_of
from corefw.engine.scheduler.observers import show_step
from corefw.engine.scheduler.request_book import NO_EXTRA, RequestBook
from corefw.engine.scheduler.step import StepBuilder
from corefw.engine.scheduler.stopping import Stop, check_stop
from corefw.messages.outputs import EngineCoreOutput, ErrorKind, FinishReason, ModelRunnerOutput
from corefw.messages.scheduling import SchedulerOutput

__all__ = ["DefaultScheduler"]

_NO_TOKENS: list[int] = []
_NOT_LOADED = "the KV cache of this request could not be loaded from where it was kept; send it again"


class DefaultScheduler(RequestBook):
    """Running requests first, then admissions; preemption when blocks run out."""

    name: ClassVar[str] = "default"
    schedules_ahead: ClassVar[bool] = True

    # A step.

    def schedule(self) -> SchedulerOutput:
        if self._leases:
            self._leases.return_due()
        for request in self._blocked.take_ready():
            request.move_to(RequestStatus.WAITING)
            self._waiting.add(request)
        num_eligible = min(len(self._running) + len(self._waiting), self._max_active)
        max_share = share_limit(self._limits, num_eligible)
        # Pipeline stages are busy at the same time only where each step leaves requests for those behind it.
        num_parts = 1 if self._is_async else self._max_in_flight
        max_rows = -(-num_eligible // num_parts) if num_parts > 1 else None
        step = StepBuilder(self._limits.max_num_batched_tokens, self._num_groups, max_share, max_rows)
        self._schedule_running(step)
        if not (step.preempted_ids or step.is_short):
            self._admit_waiting(step)
        self._step += 1
        finished_ids, self._finished_ids = self._finished_ids, []
        scheduled = step.build(self._step, finished_ids, tells_tokens=self._num_stages > 1)
        self._launch(step.requests, scheduled)
        self._counters.count_step(scheduled.total_num_scheduled_tokens)
        if self._observers:
            show_step(self._observers, scheduled, self.stats())
        return scheduled if self._transfers is None else self._transfers.with_metadata(scheduled)

    def _schedule_running(self, step: StepBuilder) -> None:
        index, running, allocate_slots = 0, self._running, self._kv.allocate_slots
        while index < len(running) and step.token_budget > 0 and step.num_free_rows > 0:
            request = running[index]
            num_ordered = request.num_computed_tokens + request.num_in_flight_tokens
            num_tokens = len(request.token_ids) - num_ordered
            if request.num_in_flight_tokens:
                num_tokens += request.num_placeholders
                if num_tokens < 1 or self._ends_in_flight(request):
                    step.growing.append(request)
                    index += 1
                    continue
            if num_tokens > 1:
                step.growing.append(request)
                num_tokens = self._chunk(request, num_tokens, step)
            if num_ordered + num_tokens <= request.num_slots:  # so it is in nearly every step
                step.go_on(request, num_tokens)
                index += 1
                continue
            while (new_block_ids := allocate_slots(request, num_tokens)) is None:
                if self._in_flight.holds_blocks:  # nobody has to give way for what comes free by itself
                    step.is_short = True
                    index += 1
                    break
                index -= self._make_room(request, step)
                if request.status is not RequestStatus.RUNNING:
                    break
            else:
                step.go_on(request, num_tokens, new_block_ids)
                index += 1

    def _ends_in_flight(self, request: Request) -> bool:
        """Whether tokens on their way end the output, whatever they are: another one would be thrown away."""
        num_placeholders = request.num_placeholders
        return num_placeholders > 0 and len(request.token_ids) + num_placeholders >= request.length_limit

    def _launch(self, requests: dict[str, Request], scheduled: SchedulerOutput) -> None:
        """Count a step as being on its way, where another one is put together before it lands."""
        self._in_flight.launch(self._step, requests)
        if self._max_in_flight == 1:
            return
        for request_id, num_tokens in scheduled.num_scheduled_tokens.items():
            request = requests[request_id]
            request.num_in_flight_tokens += num_tokens
            num_ordered = request.num_computed_tokens + request.num_in_flight_tokens
            if self._is_async and num_ordered == len(request.token_ids) + request.num_placeholders:
                request.num_placeholders += 1

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
        self._put_back(victim)
        self._counters.num_preemptions += 1
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
        if not self._waiting or len(self._running) >= self._max_active:
            return
        # Blocks that prefills on their way will still want.
        growing = [request for request in step.growing if request.status is RequestStatus.RUNNING]
        if self._transfers is not None:
            growing += self._transfers.holders()
        num_reserved = sum(self._kv.num_blocks_to_come(request) for request in growing)
        while step.token_budget > 0 and step.num_free_rows > 0 and len(self._running) < self._max_active:
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
        sampled_by_id = dict(zip(result.request_ids, result.sampled_token_ids, strict=True))
        logprobs = logprobs_by_id(result)
        refused, failures = result.refused, result.failed
        for request, num_tokens in self._landed(scheduled):
            request_id = request.request_id
            sampled = sampled_by_id.get(request_id, _NO_TOKENS)
            refusal = refused.get(request_id) if refused else None
            error = failures.get(request_id) if failures else None
            error = error or refusal or self._advance(request, num_tokens, len(sampled))
            if refusal:
                outputs.append(self._finish(request, FinishReason.ERROR, error=refusal, kind=ErrorKind.REQUEST))
            elif error:
                outputs.append(self._finish(request, FinishReason.ERROR, error=error))
            elif sampled:
                outputs.append(self._take_tokens(request, sampled, logprobs.get(request_id), result))
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
        if not request.has_output:
            request.num_cached_tokens = None
        if request.status is RequestStatus.BLOCKED:
            self._kv.free(request)
            request.num_computed_tokens = 0
            self._blocked.remove(request)
            request.move_to(RequestStatus.WAITING)
            self._waiting.add(request)
        else:
            self._start_over(request)
        return None

    def _advance(self, request: Request, num_tokens: int, num_sampled: int) -> str | None:
        """Count a step's tokens as computed. An error when the worker sampled where it shouldn't have, or didn't."""
        num_before = request.num_computed_tokens
        num_computed = request.num_computed_tokens = num_before + num_tokens
        if request.num_in_flight_tokens:
            request.num_in_flight_tokens -= num_tokens
            request.num_placeholders -= self._is_async and num_sampled > 0
        is_due = num_computed == len(request.token_ids)
        if (num_sampled > 0) != is_due:
            expected = "one was due" if is_due else "known tokens were still to be computed"
            return f"the worker sampled {num_sampled} tokens when {expected}"
        if num_before < request.num_prompt_tokens:
            self._counters.count_computed(request, num_tokens)
        if num_computed >= request.next_block_end:
            self._kv.cache_blocks(request)
        return None

    def _take_tokens(
        self, request: Request, sampled: list[int], logprobs: RowLogprobs | None, result: ModelRunnerOutput
    ) -> EngineCoreOutput:
        taken, stop = self._append(request, sampled)
        self._counters.num_generation_tokens += len(taken)
        if request.has_output and not (stop or logprobs or result.extra or result.prompt_logprobs):
            return EngineCoreOutput(request_id=request.request_id, new_token_ids=taken)
        num_logprobs = request.params.logprobs
        extra = result.extra.get(request.request_id, NO_EXTRA)
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
        if request.length_limit == request.num_prompt_tokens:  # the prompt was only to be scored
            return [], Stop(FinishReason.LENGTH)
        token_ids, num_before = request.token_ids, len(request.token_ids)
        for token_id in sampled:
            token_ids.append(token_id)
            if token_id in request.last_ids or len(token_ids) >= request.length_limit:
                stop = check_stop(request, self._max_model_len)
                if stop:
                    return sampled[: len(token_ids) - num_before], stop
        return sampled, None

    def fail_step(self, scheduled: SchedulerOutput, error: str) -> list[EngineCoreOutput]:
        outputs = self._take_pending()
        # Steps that were on their way when one failed can fail for its sake: the worker isn't where they left off.
        is_aftermath = scheduled.step <= self._last_doubtful_step
        for request, _ in self._landed(scheduled):
            if is_aftermath:
                self._start_over(request)
            else:
                outputs.append(self._finish(request, FinishReason.ERROR, error=error))
        self._drop_ended()
        if not is_aftermath:
            self._last_doubtful_step = self._in_flight.last_step
        # The worker may have failed before it forgot these; to be told twice doesn't hurt it.
        again = [*scheduled.finished_request_ids, *scheduled.preempted_request_ids]
        told = dict.fromkeys([*self._finished_ids, *again])
        self._finished_ids = [request_id for request_id in told if not self._runs(request_id)]
        return outputs

    def _runs(self, request_id: str) -> bool:
        """Whether the worker has got the id anew since then."""
        request = self._requests.get(request_id)
        return request is not None and request.status is RequestStatus.RUNNING

    def _start_over(self, request: Request) -> None:
        """Let a running request be computed anew, by a worker that gets it anew."""
        self._put_back(request)
        self._any_ended = True
        self._finished_ids.append(request.request_id)

    def _put_back(self, request: Request) -> None:
        """Take everything from a running request, and let it wait again."""
        self._free(request)
        request.num_computed_tokens = 0
        request.move_to(RequestStatus.PREEMPTED)
        self._waiting.put_back(request)

    def _landed(self, scheduled: SchedulerOutput) -> list[tuple[Request, int]]:
        """The step's requests with their tokens, without those that ended or gave way while it ran."""
        requests, running = self._in_flight.land(scheduled.step), RequestStatus.RUNNING
        return [
            (request, num_tokens)
            for request_id, num_tokens in scheduled.num_scheduled_tokens.items()
            if (request := requests.get(request_id)) is not None and request.status is running
        ]
