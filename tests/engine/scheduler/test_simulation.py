"""Whole lives of many requests under a small cache, against a worker that notices every wrong block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from corefw.builtins.schedulers.priority import Priority
from corefw.interfaces.scheduler import RequestView, SchedulerStrategy
from corefw.messages.outputs import EngineCoreOutput, FinishReason, ModelRunnerOutput
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from tests.engine.scheduler.setup import make_scheduler, make_spec
from tests.engine.scheduler.simulation import VOCAB_SIZE, Group, SimulatedWorker, expected_output, next_token

MAX_MODEL_LEN = 24
EOS = 0


class SmallChunks(Priority):
    def chunk_tokens(self, request: RequestView, num_new_tokens: int, token_budget: int) -> int:
        return 1 + num_new_tokens // 2


# Of the KV cache: block size and window of each group.
LAYOUTS = {
    "full": (Group(),),
    "window": (Group(window=6),),
    "full and windows": (Group(), Group(window=6), Group(window=3)),
    "two block sizes": (Group(8), Group(4, window=5)),
}


def blocks_of_one(groups: Sequence[Group], max_step_tokens: int) -> int:
    """Blocks that a request of full length may hold at once."""
    total = 0
    for group in groups:
        whole = -(-MAX_MODEL_LEN // group.block_size)
        in_step = whole if group.window is None else -(-(group.window - 1 + max_step_tokens) // group.block_size) + 1
        total += min(whole, in_step)
    return total


# Many begin alike, so that they share blocks, and none is so long that it leaves nothing to say.
SHARED = [1, 2, 1, 1, 2, 2, 2, 1, 1, 2, 1, 2, 2, 1, 1, 1]
prompts = st.builds(
    lambda num_shared, tail: SHARED[:num_shared] + tail,
    st.integers(0, len(SHARED)),
    st.lists(st.integers(1, 2), min_size=1, max_size=MAX_MODEL_LEN - 1 - len(SHARED)),
)
params = st.builds(
    SamplingParams,
    max_tokens=st.sampled_from([None, None, 15, 4]),
    min_tokens=st.integers(0, 4),
    stop_token_ids=st.sampled_from([(), (3, 4, 5)]),
    seed=st.integers(0, 2),
)


class SchedulerMachine(RuleBasedStateMachine):
    """Requests arrive and go as they like; in the end each has had what it would have had alone."""

    strategies: ClassVar[list[SchedulerStrategy | None]] = [None, Priority(), SmallChunks()]

    @initialize(
        num_spare_blocks=st.integers(0, 7),
        max_num_seqs=st.sampled_from([4, 3, 2, 1]),
        max_num_batched_tokens=st.sampled_from([30, 8, 3, 1]),
        chunked=st.booleans(),
        prefix_caching=st.booleans(),
        strategy=st.sampled_from([0, 1, 2]),
        layout=st.sampled_from(sorted(LAYOUTS)),
        threshold=st.sampled_from([0, 0, 2, 5]),
        adaptive=st.booleans(),
        watermark=st.sampled_from([0.0, 0.0, 0.3]),
        must_fit=st.sampled_from([True, True, False]),
        num_idle=st.integers(0, 1),
        ahead=st.just({}),
    )
    def start(
        self,
        num_spare_blocks: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        chunked: bool,
        prefix_caching: bool,
        strategy: int,
        layout: str,
        threshold: int,
        adaptive: bool,
        watermark: float,
        must_fit: bool,
        num_idle: int,
        ahead: dict[str, int],
    ) -> None:
        budget = max_num_batched_tokens if chunked else 30
        groups = LAYOUTS[layout]
        self.depth = 2 if "async_scheduling" in ahead else ahead.get("num_stages", 1)
        num_blocks = 1 + blocks_of_one(groups, budget * self.depth) + num_spare_blocks
        threshold = threshold if chunked else 0
        self.max_active = max(1, max_num_seqs - num_idle)
        self.scheduler = make_scheduler(
            num_blocks=num_blocks,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=max_num_seqs,
            max_num_active_seqs=self.max_active,
            max_num_batched_tokens=budget,
            enable_chunked_prefill=chunked,
            prefix_caching=prefix_caching,
            strategy=self.strategies[strategy],
            specs=[make_spec(group.block_size, group.window) for group in groups],
            long_prefill_token_threshold=threshold,
            adaptive_long_prefill_threshold=adaptive and threshold > 0,
            watermark=watermark,
            full_sequence_must_fit=must_fit,
            **ahead,  # type: ignore[arg-type]
        )
        self.worker = SimulatedWorker(num_blocks, max_num_seqs, budget, groups)
        self.requests: dict[str, EngineCoreRequest] = {}
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, EngineCoreOutput] = {}
        self.cached_told: set[str] = set()

    @rule(
        arrivals=st.lists(st.tuples(prompts, params, st.integers(0, 2)), min_size=1, max_size=3),
        salt=st.sampled_from([None, None, "x"]),
    )
    def arrive(self, arrivals: list[tuple[list[int], SamplingParams, int]], salt: str | None) -> None:
        for prompt, params, priority in arrivals:
            self.add(prompt, params, [], salt, priority)

    @rule(prompt=prompts, params=params, num_prior=st.integers(1, 8))
    def arrive_from_elsewhere(self, prompt: list[int], params: SamplingParams, num_prior: int) -> None:
        """A request that another engine began: as many of its tokens as that engine may have sent."""
        alone = EngineCoreRequest(request_id="alone", prompt_ids=prompt, params=params, eos_ids=(EOS,))
        outputs, _ = expected_output(alone, MAX_MODEL_LEN)
        self.add(prompt, params, outputs[:num_prior], None, 0)

    def add(self, prompt: list[int], params: SamplingParams, prior: list[int], salt: str | None, priority: int) -> None:
        request = EngineCoreRequest(
            request_id=f"r{len(self.requests)}",
            prompt_ids=prompt,
            params=params,
            prior_output_ids=prior,
            eos_ids=(EOS,),
            arrival_s=float(len(self.requests)),
            priority=priority,
            cache_salt=salt,
        )
        self.scheduler.add_request(request)
        self.requests[request.request_id] = request
        self.tokens[request.request_id] = []

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.requests)))
        self.take(self.scheduler.finish_requests([request_id], FinishReason.ABORT))

    @rule(num_steps=st.integers(1, 12))
    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            scheduled = self.scheduler.schedule()
            self.worker.apply(scheduled)
            self.take(self.scheduler.update(scheduled, self.worker.compute(scheduled)))

    @rule(data=st.data())
    def run_and_abort_meanwhile(self, data: st.DataObject) -> None:
        scheduled = self.scheduler.schedule()
        self.worker.apply(scheduled)
        result = self.worker.compute(scheduled)
        if scheduled.num_scheduled_tokens:
            request_id = data.draw(st.sampled_from(sorted(scheduled.num_scheduled_tokens)))
            self.take(self.scheduler.finish_requests([request_id], FinishReason.ABORT))
        self.take(self.scheduler.update(scheduled, result))

    @rule(data=st.data())
    def run_with_a_failing_row(self, data: st.DataObject) -> None:
        scheduled = self.scheduler.schedule()
        self.worker.apply(scheduled)
        result = self.worker.compute(scheduled)
        if scheduled.num_scheduled_tokens:
            request_id = data.draw(st.sampled_from(sorted(scheduled.num_scheduled_tokens)))
            # The row's KV can't be relied on.
            self.worker.spoil(request_id, scheduled.num_scheduled_tokens[request_id])
            result = ModelRunnerOutput(
                request_ids=result.request_ids,
                sampled_token_ids=result.sampled_token_ids,
                failed={request_id: "the row failed"},
            )
        self.take(self.scheduler.update(scheduled, result))

    @rule(was_applied=st.booleans())
    def run_a_failing_step(self, was_applied: bool) -> None:
        scheduled = self.scheduler.schedule()
        if was_applied:
            self.worker.apply(scheduled)
            for request_id, count in scheduled.num_scheduled_tokens.items():
                self.worker.spoil(request_id, count, computed=False)
        self.take(self.scheduler.fail_step(scheduled, "the step failed"))
        self.worker.expect_again(scheduled, was_applied=was_applied)

    @rule()
    def reset(self) -> None:
        assert self.scheduler.reset_prefix_cache() == (self.scheduler.stats().kv_usage == 0.0)

    def take(self, outputs: list[EngineCoreOutput]) -> None:
        for output in outputs:
            assert output.request_id not in self.ends, "an output after the last one"
            self.tokens[output.request_id] += output.new_token_ids
            assert (output.num_cached_tokens is not None) == (output.request_id not in self.cached_told)
            self.cached_told.add(output.request_id)
            if output.finish_reason is not None:
                self.ends[output.request_id] = output

    @invariant()
    def what_was_sent_is_the_beginning_of_what_the_request_gives_alone(self) -> None:
        for request_id, request in self.requests.items():
            expected, reason = expected_output(request, MAX_MODEL_LEN)
            expected = expected[len(request.prior_output_ids) :]
            end = self.ends.get(request_id)
            if end is not None and end.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert (self.tokens[request_id], end.finish_reason) == (expected, reason)
            else:
                assert self.tokens[request_id] == expected[: len(self.tokens[request_id])]

    @invariant()
    def no_more_run_than_may(self) -> None:
        if hasattr(self, "scheduler"):
            assert self.scheduler.stats().num_running <= self.max_active

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(2000):
            if not self.scheduler.has_work():
                break
            self.run(1)
        assert not self.scheduler.has_work(), "the requests never end"
        assert set(self.ends) == set(self.requests)
        assert self.worker.held == {}
        assert set(self.worker.num_times_finished) == set(self.requests)
        assert set(self.worker.num_times_finished.values()) <= {1}
        stats = self.scheduler.stats()
        assert (stats.num_running, stats.num_waiting, stats.kv_usage) == (0, 0, 0.0)
        assert self.scheduler.reset_prefix_cache()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(deadline=None, derandomize=True, max_examples=150, stateful_step_count=30)


def run_all(requests: list[EngineCoreRequest], **limits: object) -> tuple[dict[str, list[int]], int]:
    """Outputs by request, and how often one was preempted."""
    num_blocks = int(limits.pop("num_blocks"))  # type: ignore[call-overload]
    scheduler = make_scheduler(num_blocks=num_blocks, max_model_len=MAX_MODEL_LEN, **limits)  # type: ignore[arg-type]
    worker = SimulatedWorker(num_blocks, 256, 2048)
    for request in requests:
        scheduler.add_request(request)
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    while scheduler.has_work():
        scheduled = scheduler.schedule()
        worker.apply(scheduled)
        for output in scheduler.update(scheduled, worker.compute(scheduled)):
            tokens[output.request_id] += output.new_token_ids
    return tokens, scheduler.stats().num_preemptions


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("strategy", [None, Priority()])
def test_a_crowd_that_is_preempted_again_and_again_says_what_each_says_alone(
    prefix_caching: bool, strategy: SchedulerStrategy | None
) -> None:
    requests = [
        EngineCoreRequest(
            request_id=f"r{index}",
            prompt_ids=[1 + index % 3, 2, 1, 2, 1],
            params=SamplingParams(max_tokens=None, seed=index),
            priority=index % 2,
            arrival_s=float(index),
        )
        for index in range(8)
    ]
    # Six blocks a request, and room for one and a half.
    tokens, num_preemptions = run_all(requests, num_blocks=10, prefix_caching=prefix_caching, strategy=strategy)
    assert num_preemptions > 0
    for request in requests:
        assert tokens[request.request_id] == expected_output(request, MAX_MODEL_LEN)[0]


def test_the_simulated_model_depends_on_every_token() -> None:
    said = {next_token([token_id, *[1] * 10], 0) for token_id in range(40)}
    assert len(said) > VOCAB_SIZE // 3
