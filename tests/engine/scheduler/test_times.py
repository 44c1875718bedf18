"""What the scheduler tells of times and of the size of its steps."""

from __future__ import annotations

import time

from corefw.messages.codec import Codec
from corefw.messages.outputs import EngineCoreOutput, EngineCoreOutputs, FinishReason, RequestTimes
from corefw.messages.sampling import SamplingParams
from corefw.observability.metrics_catalog import STEP_TOKEN_BOUNDS
from tests.engine.scheduler.setup import make_request, make_scheduler, result_of


def test_the_first_output_alone_tells_when_the_request_first_ran_and_had_its_token() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=4)
    scheduler.add_request(make_request("a", 6))
    before_s = time.monotonic()
    scheduled = scheduler.schedule()
    after_s = time.monotonic()
    assert scheduler.update(scheduled, result_of(scheduled)) == []
    outputs: list[EngineCoreOutput] = []
    for _ in range(3):
        scheduled = scheduler.schedule()
        outputs += scheduler.update(scheduled, result_of(scheduled, a=[7]))
    first, *others = outputs
    assert first.times is not None
    assert first.times.first_token_s is not None
    assert before_s <= first.times.scheduled_s <= after_s <= first.times.first_token_s <= time.monotonic()
    assert [output.times for output in others] == [None, None]


def test_a_request_that_never_ran_has_no_times_and_one_without_a_token_has_no_first_one() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    for name in "ab":
        scheduler.add_request(make_request(name, 6))
    scheduler.schedule()
    ran, waited = scheduler.finish_requests(["a", "b"], FinishReason.ABORT)
    assert ran.times is not None
    assert ran.times.first_token_s is None
    assert waited.times is None


def test_a_preemption_keeps_the_time_of_the_first_step() -> None:
    scheduler = make_scheduler(num_blocks=5, full_sequence_must_fit=False, max_num_batched_tokens=8)
    endless = SamplingParams(max_tokens=None)
    scheduler.add_request(make_request("a", 6, params=endless))
    scheduler.add_request(make_request("b", 7, params=endless))
    first_s: dict[str, float] = {}
    for _ in range(12):
        scheduled = scheduler.schedule()
        for request_id in scheduled.num_scheduled_tokens:
            first_s.setdefault(request_id, time.monotonic())
        sampled = {
            name: [7]
            for name, num_tokens in scheduled.num_scheduled_tokens.items()
            if scheduler._requests[name].num_computed_tokens + num_tokens == scheduler._requests[name].num_tokens
        }
        for output in scheduler.update(scheduled, result_of(scheduled, **sampled)):
            if output.times is not None:
                assert output.times.scheduled_s <= first_s[output.request_id]
    assert scheduler.stats().num_preemptions > 0
    for request in scheduler._requests.values():
        assert request.scheduled_s is not None
        assert request.scheduled_s <= first_s[request.request_id]


def test_steps_are_counted_by_their_tokens_and_empty_ones_are_not() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=20)
    scheduler.update(scheduler.schedule(), result_of(scheduler.schedule()))
    scheduler.add_request(make_request("a", 29))
    sizes = []
    for _ in range(4):
        scheduled = scheduler.schedule()
        sizes.append(scheduled.total_num_scheduled_tokens)
        is_due = sum(sizes) >= 29
        scheduler.update(scheduled, result_of(scheduled, **({"a": [7]} if is_due else {})))
    assert sizes == [20, 9, 1, 1]
    stats = scheduler.stats()
    assert (stats.num_steps, stats.num_step_tokens) == (4, 31)
    counts = dict(zip(STEP_TOKEN_BOUNDS, stats.step_token_counts, strict=False))
    assert {bound: count for bound, count in counts.items() if count} == {1: 2, 16: 1, 32: 1}


def test_times_travel_once_and_cost_nothing_afterwards() -> None:
    codec = Codec(EngineCoreOutputs)
    first = EngineCoreOutput(request_id="a", new_token_ids=[1], times=RequestTimes(1.5, 2.25))
    later = EngineCoreOutput(request_id="a", new_token_ids=[1])
    assert codec.decode(codec.encode(EngineCoreOutputs(outputs=[first, later]))).outputs == [first, later]
    assert b"times" not in b"".join(map(bytes, codec.encode(EngineCoreOutputs(outputs=[later]))))
