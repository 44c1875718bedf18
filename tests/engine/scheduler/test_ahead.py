"""The lives of many requests again, with several steps on their way at once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import initialize, precondition, rule

from corefw.messages.outputs import EngineCoreOutput, FinishReason, ModelRunnerOutput
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.messages.scheduling import SchedulerOutput
from tests.engine.scheduler.setup import make_request, make_scheduler, result_of
from tests.engine.scheduler.simulation import SimulatedWorker, expected_output
from tests.engine.scheduler.test_simulation import MAX_MODEL_LEN, SchedulerMachine

WAYS = {
    "async": {"async_scheduling": True},
    "two stages": {"num_stages": 2},
    "three stages": {"num_stages": 3},
}


@dataclass
class Step:
    """A step that the worker has; without a result: it failed."""

    scheduled: SchedulerOutput
    result: ModelRunnerOutput | None
    blocks: set[int]


@dataclass
class EarlyStage:
    """Knows only those tokens that it is told."""

    tokens: dict[str, list[int]] = field(default_factory=dict)

    def apply(self, scheduled: SchedulerOutput, last_stage: SimulatedWorker) -> None:
        for request_id in (*scheduled.finished_request_ids, *scheduled.preempted_request_ids):
            self.tokens.pop(request_id, None)
        for new in scheduled.new_requests:
            self.tokens[new.request_id] = [*new.prompt_ids, *new.output_ids]
        cached = scheduled.cached_requests
        for request_id, token_ids in zip(cached.request_ids, cached.new_token_ids, strict=True):
            self.tokens[request_id] += token_ids
            assert self.tokens[request_id] == last_stage.held[request_id].tokens


class AheadMachine(SchedulerMachine):
    """Nothing differs in what requests get; no block is handed out that a step on its way may touch."""

    @initialize(
        way=st.sampled_from(sorted(WAYS)),
        num_spare_blocks=st.integers(0, 7),
        max_num_seqs=st.sampled_from([4, 3, 2, 1]),
        max_num_batched_tokens=st.sampled_from([30, 8, 3, 1]),
        prefix_caching=st.booleans(),
        strategy=st.sampled_from([0, 1, 2]),
        layout=st.sampled_from(["full", "window", "full and windows", "two block sizes"]),
        threshold=st.sampled_from([0, 0, 2, 5]),
        watermark=st.sampled_from([0.0, 0.0, 0.3]),
        must_fit=st.sampled_from([True, True, False]),
    )
    def start(  # type: ignore[override]
        self,
        way: str,
        num_spare_blocks: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        prefix_caching: bool,
        strategy: int,
        layout: str,
        threshold: int,
        watermark: float,
        must_fit: bool,
    ) -> None:
        super().start(
            num_spare_blocks,
            max_num_seqs,
            max_num_batched_tokens,
            True,
            prefix_caching,
            strategy,
            layout,
            threshold,
            False,
            watermark,
            must_fit,
            0,
            WAYS[way],
        )
        self.has_stages = way != "async"
        self.on_their_way: deque[Step] = deque()
        self.early_stage = EarlyStage()
        self.is_settling = False

    def launch_all(self) -> None:
        self.is_settling = self.is_settling and bool(self.on_their_way)
        while len(self.on_their_way) < self.depth and not self.is_settling:
            self.launch()

    def launch(self, *, failing_row: str | None = None, fails: bool = False) -> SchedulerOutput:
        scheduled = self.scheduler.schedule()
        fresh = {block_id for group in scheduled.block_ids_to_zero for block_id in group}
        for step in self.on_their_way:
            assert not fresh & step.blocks, "a block is handed out that a step on its way may touch"
        if fails or any(step.result is None for step in self.on_their_way):
            self.worker.skip(scheduled)
            self.on_their_way.append(Step(scheduled, None, set()))
            return scheduled
        self.worker.apply(scheduled)
        if self.has_stages:
            self.early_stage.apply(scheduled, self.worker)
        else:
            assert scheduled.cached_requests.new_token_ids == []
        blocks = {
            block_id
            for request_id in scheduled.num_scheduled_tokens
            for table in self.worker.held[request_id].tables
            for block_id in table
        }
        result = self.worker.compute(scheduled)
        if failing_row is not None and failing_row in scheduled.num_scheduled_tokens:
            self.worker.spoil(failing_row, scheduled.num_scheduled_tokens[failing_row])
            result = ModelRunnerOutput(
                request_ids=result.request_ids,
                sampled_token_ids=result.sampled_token_ids,
                failed={failing_row: "the row failed"},
            )
        self.on_their_way.append(Step(scheduled, result, blocks - {0}))
        return scheduled

    def land(self) -> None:
        step = self.on_their_way.popleft()
        if step.result is not None:
            self.take(self.scheduler.update(step.scheduled, step.result))
            return
        is_first, self.is_settling = not self.is_settling, True
        outputs = self.scheduler.fail_step(step.scheduled, "the step failed")
        self.take(outputs)
        in_step = step.scheduled.num_scheduled_tokens
        ended = {output.request_id for output in outputs if output.error == "the step failed"}
        assert ended <= set(in_step)
        assert is_first or not ended, "a step that failed for another one's sake costs its requests nothing"

    @rule(num_steps=st.integers(1, 12))
    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.launch_all()
            self.land()

    @rule()
    def run_one_more_than_lands(self) -> None:
        if len(self.on_their_way) < self.depth and not self.is_settling:
            self.launch()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def run_and_abort_meanwhile(self, data: st.DataObject) -> None:
        self.launch_all()
        request_id = data.draw(st.sampled_from(sorted(self.requests)))
        self.take(self.scheduler.finish_requests([request_id], FinishReason.ABORT))
        self.land()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def run_with_a_failing_row(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.requests)))
        self.make_room()
        self.launch(failing_row=request_id)

    @rule(was_applied=st.just(False))
    def run_a_failing_step(self, was_applied: bool) -> None:
        del was_applied
        self.make_room()
        self.launch(fails=True)

    def make_room(self) -> None:
        while len(self.on_their_way) == self.depth or (self.is_settling and self.on_their_way):
            self.land()
        self.is_settling = False

    @rule()
    def reset(self) -> None:
        assert self.scheduler.reset_prefix_cache() == (self.scheduler.stats().kv_usage == 0.0)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(2000):
            if not (self.scheduler.has_work() or self.on_their_way):
                break
            self.run(1)
        assert not self.scheduler.has_work(), "the requests never end"
        while self.on_their_way:
            self.land()
        assert set(self.ends) == set(self.requests)
        assert self.worker.held == {}
        stats = self.scheduler.stats()
        assert (stats.num_running, stats.num_waiting, stats.kv_usage) == (0, 0, 0.0)
        assert self.scheduler.reset_prefix_cache()


TestAhead = AheadMachine.TestCase
# Without shrinking, which takes minutes here.
TestAhead.settings = settings(
    deadline=None,
    derandomize=True,
    max_examples=40,
    stateful_step_count=30,
    phases=(Phase.explicit, Phase.generate),
)


def test_a_step_is_made_before_the_tokens_of_the_one_before_it_are_known() -> None:
    scheduler = make_scheduler(async_scheduling=True)
    scheduler.add_request(make_request("a", params=SamplingParams(max_tokens=3)))
    first, second = scheduler.schedule(), scheduler.schedule()
    assert second.num_scheduled_tokens == {"a": 1}
    assert (second.cached_requests.num_computed_tokens, second.cached_requests.num_output_tokens) == ([5], [1])
    assert [output.new_token_ids for output in scheduler.update(first, result_of(first, a=[7]))] == [[7]]
    assert scheduler.schedule().cached_requests.num_output_tokens == [2]


@pytest.mark.parametrize(("max_tokens", "max_model_len"), [(2, 64), (None, 7), (1, 64), (0, 64)])
def test_no_token_is_computed_behind_a_limit_that_is_known(max_tokens: int | None, max_model_len: int) -> None:
    scheduler = make_scheduler(async_scheduling=True, max_model_len=max_model_len)
    params = SamplingParams(max_tokens=max_tokens, prompt_logprobs=0 if max_tokens == 0 else None)
    scheduler.add_request(make_request("a", 5, params=params))
    steps = [scheduler.schedule() for _ in range(4)]
    num_due = max(1, 2 if max_tokens is None else max_tokens)
    assert [step.total_num_scheduled_tokens for step in steps] == ([5, 1, 0, 0] if num_due == 2 else [5, 0, 0, 0])
    outputs = [output for step in steps for output in scheduler.update(step, result_of(step, a=[7]))]
    assert [output.finish_reason for output in outputs][-1] is FinishReason.LENGTH
    assert len(outputs) == num_due


def test_the_token_behind_an_end_that_was_found_late_is_dropped() -> None:
    scheduler = make_scheduler(async_scheduling=True)
    scheduler.add_request(make_request("a", eos_ids=(9,)))
    first, second = scheduler.schedule(), scheduler.schedule()
    (end,) = scheduler.update(first, result_of(first, a=[9]))
    assert (end.new_token_ids, end.finish_reason) == ([9], FinishReason.STOP)
    assert scheduler.stats().kv_usage > 0, "a step on its way still writes to its blocks"
    assert scheduler.update(second, result_of(second, a=[3])) == []
    assert scheduler.stats().kv_usage == 0
    assert scheduler.stats().num_generation_tokens == 1


def test_what_comes_back_of_a_request_isnt_taken_for_a_later_one_of_its_name() -> None:
    scheduler = make_scheduler(async_scheduling=True)
    scheduler.add_request(make_request("a"))
    first, second = scheduler.schedule(), scheduler.schedule()
    scheduler.finish_requests(["a"], FinishReason.ABORT)
    scheduler.add_request(make_request("a", 3))
    assert scheduler.update(first, result_of(first, a=[7])) == []
    third = scheduler.schedule()
    assert third.finished_request_ids == ["a"]
    assert third.num_scheduled_tokens == {"a": 3}
    assert scheduler.update(second, result_of(second, a=[8])) == []
    assert [output.new_token_ids for output in scheduler.update(third, result_of(third, a=[9]))] == [[9]]


def test_tokens_in_flight_when_a_request_gives_way_are_stale() -> None:
    scheduler = make_scheduler(async_scheduling=True, num_blocks=5, prefix_caching=False)
    for name in "ab":
        scheduler.add_request(make_request(name, 7, params=SamplingParams(max_tokens=6)))
    first = scheduler.schedule()  # two blocks each, and nothing is left
    second = scheduler.schedule()  # both are full now
    third = scheduler.schedule()
    assert third.preempted_request_ids == ["b"]
    assert third.num_scheduled_tokens == {}, "the blocks of b come free when what is on its way has landed"
    outputs = scheduler.update(first, result_of(first, a=[1], b=[1]))
    assert [output.request_id for output in outputs] == ["a"]
    assert [output.request_id for output in scheduler.update(second, result_of(second, a=[2], b=[2]))] == ["a"]
    scheduler.update(third, result_of(third))
    assert scheduler.schedule().num_scheduled_tokens == {"a": 1}


def test_stages_are_told_the_tokens_that_others_sampled() -> None:
    scheduler = make_scheduler(num_stages=2)
    scheduler.add_request(make_request("a"))
    scheduler.add_request(make_request("b"))
    first, second = scheduler.schedule(), scheduler.schedule()
    assert (list(first.num_scheduled_tokens), list(second.num_scheduled_tokens)) == (["a"], ["b"])
    assert scheduler.schedule().num_scheduled_tokens == {}, "whoever waits for a token isn't scheduled"
    scheduler.update(first, result_of(first, a=[7]))
    assert scheduler.schedule().cached_requests.new_token_ids == [[7]]


def test_a_step_of_several_stages_leaves_requests_for_those_behind_it() -> None:
    scheduler = make_scheduler(num_stages=3)
    for name in "abcdefg":
        scheduler.add_request(make_request(name))
    assert [len(scheduler.schedule().num_scheduled_tokens) for _ in range(4)] == [3, 3, 1, 0]


def test_requests_alone_say_the_same() -> None:
    request = EngineCoreRequest(request_id="r", prompt_ids=[1, 2, 3], params=SamplingParams(max_tokens=9, seed=1))
    scheduler = make_scheduler(async_scheduling=True, max_model_len=MAX_MODEL_LEN)
    worker = SimulatedWorker(50, 4, 2048)
    scheduler.add_request(request)
    outputs: list[EngineCoreOutput] = []
    on_their_way: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
    while scheduler.has_work() or on_their_way:
        scheduled = scheduler.schedule()
        worker.apply(scheduled)
        on_their_way.append((scheduled, worker.compute(scheduled)))
        while len(on_their_way) == 2 or (on_their_way and not scheduler.has_work()):
            outputs += scheduler.update(*on_their_way.popleft())
    assert [token for output in outputs for token in output.new_token_ids] == expected_output(request, MAX_MODEL_LEN)[0]
