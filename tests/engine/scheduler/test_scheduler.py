from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest

from corefw.engine.scheduler.scheduler import DefaultScheduler
from corefw.errors import ContextLengthError, RequestError
from corefw.interfaces.scheduler import RequestView, SchedulerStrategy
from corefw.messages.arrays import Array
from corefw.messages.outputs import EngineCoreOutput, ErrorKind, FinishReason, ModelRunnerOutput, StepLogprobs
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.messages.scheduling import SchedulerOutput
from tests.engine.scheduler.setup import Gate, make_request, make_scheduler, result_of


def step(scheduler: DefaultScheduler, **sampled: list[int]) -> tuple[SchedulerOutput, list[EngineCoreOutput]]:
    scheduled = scheduler.schedule()
    return scheduled, scheduler.update(scheduled, result_of(scheduled, **sampled))


def long_running(name: str, num_prompt_tokens: int) -> EngineCoreRequest:
    return make_request(name, num_prompt_tokens, params=SamplingParams(max_tokens=None))


# Admission and budget


def test_a_prompt_is_computed_and_then_one_token_a_step() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 5))
    scheduled, outputs = step(scheduler, a=[7])
    assert scheduled.num_scheduled_tokens == {"a": 5}
    assert [(output.request_id, output.new_token_ids) for output in outputs] == [("a", [7])]
    scheduled, _ = step(scheduler, a=[8])
    assert scheduled.num_scheduled_tokens == {"a": 1}
    assert scheduled.cached_requests.num_computed_tokens == [5]
    assert scheduled.cached_requests.num_output_tokens == [1]


def test_running_requests_come_before_admissions() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=6)
    scheduler.add_request(make_request("a", 5))
    step(scheduler, a=[7])
    scheduler.add_request(make_request("b", 8))
    scheduled, _ = step(scheduler, a=[7])
    assert scheduled.num_scheduled_tokens == {"a": 1, "b": 5}


def test_a_long_prompt_is_computed_in_chunks_and_sampled_after_the_last() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=4)
    scheduler.add_request(make_request("a", 10))
    assert [step(scheduler)[0].num_scheduled_tokens["a"] for _ in range(2)] == [4, 4]
    scheduled, outputs = step(scheduler, a=[7])
    assert scheduled.num_scheduled_tokens == {"a": 2}
    assert outputs[0].new_token_ids == [7]


def test_without_chunks_a_prompt_waits_for_a_step_that_takes_it_whole() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=8, enable_chunked_prefill=False)
    scheduler.add_request(make_request("a", 6))
    scheduler.add_request(make_request("b", 6))
    assert step(scheduler, a=[7])[0].num_scheduled_tokens == {"a": 6}
    assert step(scheduler, a=[7], b=[7])[0].num_scheduled_tokens == {"a": 1, "b": 6}


def test_without_chunks_a_request_that_outgrew_a_step_comes_back_in_chunks_all_the_same() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=8, enable_chunked_prefill=False)
    scheduler.add_request(make_request("a", 6, prior_output_ids=[1] * 5, params=SamplingParams(max_tokens=20)))
    assert step(scheduler)[0].num_scheduled_tokens == {"a": 8}
    assert step(scheduler, a=[7])[0].num_scheduled_tokens == {"a": 3}


def test_no_more_requests_run_than_there_are_slots() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    for name in "abc":
        scheduler.add_request(make_request(name))
    assert list(step(scheduler, a=[7], b=[7])[0].num_scheduled_tokens) == ["a", "b"]
    assert (scheduler.stats().num_running, scheduler.stats().num_waiting) == (2, 1)


def test_a_prompt_is_admitted_only_when_all_of_it_will_fit_beside_the_prefills_on_their_way() -> None:
    """Both would fit their first chunk, and each alone fits whole."""

    class FourTokens(PreemptFirst):
        def chunk_tokens(self, request: RequestView, num_new_tokens: int, token_budget: int) -> int:
            return 4

    scheduler = make_scheduler(num_blocks=11, strategy=FourTokens())
    for name in "ab":
        scheduler.add_request(make_request(name, 24))
    for _ in range(5):
        assert step(scheduler)[0].num_scheduled_tokens == {"a": 4}
    assert step(scheduler, a=[7])[0].num_scheduled_tokens == {"a": 4}
    assert scheduler.stats().num_preemptions == 0


def test_the_first_in_the_queue_is_not_overtaken_by_one_that_would_fit() -> None:
    scheduler = make_scheduler(num_blocks=9)
    scheduler.add_request(make_request("a", 16))
    step(scheduler, a=[7])
    scheduler.add_request(make_request("b", 30))
    scheduler.add_request(make_request("c", 2))
    assert list(step(scheduler, a=[7])[0].num_scheduled_tokens) == ["a"]


def test_new_blocks_are_to_be_cleared_and_found_ones_are_not() -> None:
    scheduler = make_scheduler()
    prompt = list(range(10))
    scheduler.add_request(make_request("a", prompt_ids=prompt))
    scheduled, _ = step(scheduler, a=[7])
    assert scheduled.block_ids_to_zero == scheduled.new_requests[0].block_ids
    scheduler.add_request(make_request("b", prompt_ids=prompt))
    scheduled, _ = step(scheduler, a=[7], b=[7])
    (told,) = scheduled.new_requests
    assert told.num_computed_tokens == 8
    assert scheduled.block_ids_to_zero == [told.block_ids[0][2:]]


# Preemption


def make_crowded(strategy: SchedulerStrategy | None = None) -> DefaultScheduler:
    """Two requests of seven tokens each that fill the pool; the next token but one needs a block that isn't there."""

    scheduler = make_scheduler(num_blocks=5, max_model_len=16, strategy=strategy)
    for name in "ab":
        scheduler.add_request(long_running(name, 7))
    step(scheduler, a=[1], b=[1])
    step(scheduler, a=[2], b=[2])
    return scheduler


class PreemptFirst(SchedulerStrategy):
    name: ClassVar[str] = "preempt_first"

    def queue_key(self, request: RequestView) -> tuple[float, ...]:
        return ()

    def victim(self, running: Sequence[RequestView]) -> int:
        return 0


class PreemptOther(PreemptFirst):
    """Request b never gives way, so a, which has its share of the step by then, does."""

    def victim(self, running: Sequence[RequestView]) -> int:
        return [request.request_id for request in running].index("a")


class PreemptNobody(PreemptFirst):
    def victim(self, running: Sequence[RequestView]) -> int:
        return 5


def test_the_latest_admission_gives_way_when_blocks_run_out() -> None:
    scheduler = make_crowded()
    scheduled = scheduler.schedule()
    assert scheduled.preempted_request_ids == ["b"]
    assert scheduled.num_scheduled_tokens == {"a": 1}
    assert scheduler.stats().num_preemptions == 1


def test_a_preempted_request_comes_back_whole_with_its_outputs_and_sends_none_again() -> None:
    scheduler = make_crowded()
    step(scheduler, a=[3])
    scheduler.finish_requests(["a"], FinishReason.ABORT)
    scheduled, outputs = step(scheduler, b=[3])
    (told,) = scheduled.new_requests
    assert (told.request_id, told.output_ids) == ("b", [1, 2])
    assert told.num_computed_tokens == 4, "of its two full blocks the pool gave one to the other request"
    assert scheduled.num_scheduled_tokens == {"b": 5}
    assert [output.new_token_ids for output in outputs] == [[3]]


def test_a_preempted_request_is_first_in_the_queue() -> None:
    scheduler = make_crowded()
    scheduler.add_request(make_request("c", 1))
    step(scheduler, a=[3])
    scheduler.finish_requests(["a"], FinishReason.ABORT)
    assert list(step(scheduler, b=[3], c=[3])[0].num_scheduled_tokens) == ["b", "c"]


def test_a_preempted_request_goes_even_before_an_older_one_that_was_blocked() -> None:
    scheduler, gate = make_scheduler(num_blocks=5, max_model_len=16), Gate()
    scheduler.add_request(make_request("old", 1))
    scheduler.block("old", gate)
    for name in "ab":
        scheduler.add_request(long_running(name, 7))
    step(scheduler, a=[1], b=[1])
    step(scheduler, a=[2], b=[2])
    gate.is_open = True
    assert step(scheduler, a=[3])[0].preempted_request_ids == ["b"]
    scheduler.finish_requests(["a"], FinishReason.ABORT)
    assert list(step(scheduler, b=[3], old=[3])[0].num_scheduled_tokens) == ["b", "old"]


def test_a_step_that_preempted_admits_nobody_even_where_there_is_room() -> None:
    class Urgent(PreemptFirst):
        def queue_key(self, request: RequestView) -> tuple[float, ...]:
            return (request.priority,)

        def victim(self, running: Sequence[RequestView]) -> int:
            return len(running) - 1

    scheduler = make_crowded(Urgent())
    scheduler.add_request(make_request("c", 1, priority=-1))
    scheduled, _ = step(scheduler, a=[3])
    assert scheduled.preempted_request_ids == ["b"]
    assert scheduled.new_requests == []
    assert list(step(scheduler, a=[4], c=[4])[0].num_scheduled_tokens) == ["a", "c"]


def test_a_preempted_request_has_nothing_computed_while_it_waits() -> None:
    seen: dict[str, int] = {}

    class Watching(PreemptFirst):
        def victim(self, running: Sequence[RequestView]) -> int:
            return len(running) - 1

        def may_admit(self, request: RequestView, num_running: int) -> str | None:
            seen[request.request_id] = request.num_computed_tokens
            return None

    scheduler = make_crowded(Watching())
    step(scheduler, a=[3])
    seen.clear()
    step(scheduler, a=[4])
    assert seen == {"b": 0}


def test_a_victim_that_had_its_share_of_the_step_gives_everything_back() -> None:
    scheduler = make_scheduler(num_blocks=6, max_model_len=20, strategy=PreemptOther())
    scheduler.add_request(long_running("a", 7))
    scheduler.add_request(long_running("b", 8))
    step(scheduler, a=[1], b=[1])
    step(scheduler, a=[2], b=[2])  # b takes the last free block
    for number in range(3, 6):
        scheduled, _ = step(scheduler, a=[number], b=[number])
        if scheduled.preempted_request_ids:
            break
    assert scheduled.preempted_request_ids == ["a"]
    assert scheduled.num_scheduled_tokens == {"b": 1}
    assert scheduled.total_num_scheduled_tokens == 1
    assert scheduled.cached_requests.request_ids == ["b"]
    assert len(scheduled.block_ids_to_zero[0]) == len(scheduled.cached_requests.new_block_ids[0][0])


def test_a_victim_before_the_cursor_makes_nobody_miss_a_turn() -> None:
    scheduler = make_scheduler(num_blocks=7, max_model_len=24, strategy=PreemptFirst())
    for name, num_tokens in [("a", 4), ("b", 8), ("c", 7)]:
        scheduler.add_request(long_running(name, num_tokens))
    scheduled, _ = step(scheduler, a=[1], b=[1], c=[1])
    assert list(scheduled.num_scheduled_tokens) == ["a", "b", "c"]
    scheduled, _ = step(scheduler, a=[2], b=[2], c=[2])
    # The pool has one block left, which a takes; b finds none and a, which has its share already, gives way.
    assert scheduled.preempted_request_ids == ["a"]
    assert list(scheduled.num_scheduled_tokens) == ["b", "c"]


def test_a_request_may_be_its_own_victim_and_the_others_go_on() -> None:
    scheduler = make_crowded(PreemptFirst())
    scheduled, _ = step(scheduler, b=[3])
    assert scheduled.preempted_request_ids == ["a"]
    assert scheduled.num_scheduled_tokens == {"b": 1}


def test_a_strategy_that_names_nobody_as_victim_leaves_the_choice_to_the_default() -> None:
    assert make_crowded(PreemptNobody()).schedule().preempted_request_ids == ["b"]


def test_a_request_that_has_the_pool_to_itself_and_not_enough_ends_with_an_error() -> None:
    # The plan promises a context that the pool can't hold, which sizing never does.
    scheduler = make_scheduler(num_blocks=3, max_model_len=64)
    scheduler.add_request(long_running("a", 7))
    step(scheduler, a=[1])
    step(scheduler, a=[2])
    scheduled, outputs = step(scheduler)
    assert scheduled.num_scheduled_tokens == {}
    assert scheduled.finished_request_ids == ["a"]
    assert [(output.finish_reason, output.error) for output in outputs] == [
        (FinishReason.ERROR, "a sequence of 9 tokens needs more than the 2 blocks of the KV cache")
    ]
    assert scheduler.stats().kv_usage == 0.0
    assert not scheduler.has_work()


def test_a_prompt_that_an_empty_pool_can_not_hold_ends_and_the_next_one_runs() -> None:
    scheduler = make_scheduler(num_blocks=3, max_model_len=64)
    scheduler.add_request(make_request("a", 20))
    scheduler.add_request(make_request("b", 5))
    scheduled, outputs = step(scheduler, b=[7])
    assert list(scheduled.num_scheduled_tokens) == ["b"]
    assert [(output.request_id, output.finish_reason) for output in outputs] == [("a", FinishReason.ERROR), ("b", None)]


# Results


def test_tokens_behind_the_one_that_ends_the_output_are_dropped() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", eos_ids=(99,)))
    _, (output,) = step(scheduler, a=[7, 99, 8])
    assert (output.new_token_ids, output.finish_reason) == ([7, 99], FinishReason.STOP)


def test_several_tokens_of_one_step_all_count() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a"))
    _, (output,) = step(scheduler, a=[7, 8])
    assert output.new_token_ids == [7, 8]
    scheduled = scheduler.schedule()
    assert scheduled.num_scheduled_tokens == {"a": 2}
    assert scheduled.cached_requests.num_output_tokens == [2]


def test_the_last_output_names_the_stop_token() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", params=SamplingParams(max_tokens=4, stop_token_ids=(7,))))
    _, (output,) = step(scheduler, a=[7])
    assert (output.finish_reason, output.stop_reason) == (FinishReason.STOP, 7)


def test_only_the_first_output_tells_how_much_was_cached() -> None:
    scheduler = make_scheduler()
    prompt = list(range(9))
    for name, expected in [("a", 0), ("b", 8)]:
        scheduler.add_request(make_request(name, prompt_ids=prompt))
        _, (first,) = step(scheduler, **{name: [7]})
        _, (second,) = step(scheduler, **{name: [7]})
        assert (first.num_cached_tokens, second.num_cached_tokens) == (expected, None)
        scheduler.finish_requests([name], FinishReason.ABORT)


def test_cached_tokens_are_those_of_the_prompt_alone() -> None:
    scheduler = make_scheduler()
    tokens = list(range(12))
    scheduler.add_request(make_request("a", prompt_ids=tokens))
    step(scheduler, a=[7])
    scheduler.add_request(
        make_request("b", prompt_ids=tokens[:5], prior_output_ids=tokens[5:], params=SamplingParams())
    )
    scheduled, outputs = step(scheduler, a=[7], b=[7])
    assert scheduled.new_requests[0].num_computed_tokens == 8
    assert outputs[1].num_cached_tokens == 5


def test_a_refused_row_is_the_requests_own_fault() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 9))
    result = ModelRunnerOutput(request_ids=["a"], sampled_token_ids=[[]], refused={"a": "nothing to choose"})
    (output,) = scheduler.update(scheduler.schedule(), result)
    assert (output.finish_reason, output.error, output.error_kind) == (
        FinishReason.ERROR,
        "nothing to choose",
        ErrorKind.REQUEST,
    )


def test_a_failed_row_ends_alone_and_nothing_of_its_step_is_cached() -> None:
    scheduler = make_scheduler()
    for name in "ab":
        scheduler.add_request(make_request(name, 9))
    scheduled = scheduler.schedule()
    result = ModelRunnerOutput(request_ids=["b"], sampled_token_ids=[[7]], failed={"a": "processor raised"})
    outputs = scheduler.update(scheduled, result)
    assert [(output.request_id, output.finish_reason, output.error) for output in outputs] == [
        ("a", FinishReason.ERROR, "processor raised"),
        ("b", None, None),
    ]
    scheduler.add_request(make_request("a", 9))
    scheduled = scheduler.schedule()
    assert scheduled.new_requests[0].num_computed_tokens == 0


@pytest.mark.parametrize(
    ("num_prompt_tokens", "sampled", "message"),
    [(5, [], "sampled 0 tokens when one was due"), (9, [7], "sampled 1 tokens when known tokens were still")],
)
def test_a_worker_that_samples_at_the_wrong_time_fails_the_request(
    num_prompt_tokens: int, sampled: list[int], message: str
) -> None:
    scheduler = make_scheduler(max_num_batched_tokens=8)
    scheduler.add_request(make_request("a", num_prompt_tokens))
    _, (output,) = step(scheduler, a=sampled)
    assert output.finish_reason is FinishReason.ERROR
    assert message in (output.error or "")


def test_a_request_that_is_aborted_while_its_step_runs_gets_one_last_output() -> None:
    scheduler = make_scheduler()
    for name in "ab":
        scheduler.add_request(make_request(name))
    scheduled = scheduler.schedule()
    (aborted,) = scheduler.finish_requests(["a"], FinishReason.ABORT)
    assert aborted.finish_reason is FinishReason.ABORT
    outputs = scheduler.update(scheduled, result_of(scheduled, a=[7], b=[7]))
    assert [output.request_id for output in outputs] == ["b"]
    assert scheduler.schedule().finished_request_ids == ["a"]


def test_the_result_of_an_aborted_request_is_not_given_to_a_later_one_of_its_id() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a"))
    scheduled = scheduler.schedule()
    scheduler.finish_requests(["a"], FinishReason.ABORT)
    scheduler.add_request(make_request("a", 3))
    assert scheduler.update(scheduled, result_of(scheduled, a=[7])) == []
    scheduled = scheduler.schedule()
    assert scheduled.finished_request_ids == ["a"]
    assert scheduled.num_scheduled_tokens == {"a": 3}


def test_log_probabilities_are_cut_to_what_was_asked_for() -> None:
    scheduler = make_scheduler()
    for name, wanted in [("a", None), ("b", 1), ("c", 0)]:
        scheduler.add_request(make_request(name, params=SamplingParams(max_tokens=4, logprobs=wanted)))
    scheduled = scheduler.schedule()
    token_ids = np.array([[7, 8, 9], [7, 8, 9]], dtype=np.int32)
    logprobs = StepLogprobs(
        [1, 2],
        Array.from_numpy(token_ids),
        Array.from_numpy(-token_ids.astype(np.float32)),
        Array.from_numpy(np.array([1, 4], dtype=np.int32)),
    )
    result = ModelRunnerOutput(request_ids=["a", "b", "c"], sampled_token_ids=[[7]] * 3, logprobs=logprobs)
    a, b, c = scheduler.update(scheduled, result)
    assert a.logprobs is None
    assert b.logprobs is not None
    assert c.logprobs is not None
    assert [(each.token_ids, each.logprobs, each.rank) for each in b.logprobs] == [([7, 8], [-7.0, -8.0], 1)]
    assert [(each.token_ids, each.rank) for each in c.logprobs] == [([7], 4)]


def test_a_plugins_data_goes_out_with_the_tokens() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a"))
    scheduled = scheduler.schedule()
    result = ModelRunnerOutput(request_ids=["a"], sampled_token_ids=[[7]], extra={"a": {"score": 1}})
    assert scheduler.update(scheduled, result)[0].extra == {"score": 1}


# A failed step


def test_a_failed_step_ends_its_requests_and_no_others() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    for name in "ab":
        scheduler.add_request(make_request(name))
    outputs = scheduler.fail_step(scheduler.schedule(), "out of memory")
    assert [(output.request_id, output.finish_reason, output.error) for output in outputs] == [
        ("a", FinishReason.ERROR, "out of memory")
    ]
    assert list(scheduler.schedule().num_scheduled_tokens) == ["b"]


def test_a_failed_step_leaves_nothing_of_itself_in_the_prefix_cache() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=8)
    scheduler.add_request(make_request("a", 20))
    step(scheduler)
    scheduler.fail_step(scheduler.schedule(), "broken")
    scheduler.add_request(make_request("a", 20))
    assert scheduler.schedule().new_requests[0].num_computed_tokens == 8


def test_after_a_failed_step_the_worker_is_told_again_whom_to_forget() -> None:
    scheduler = make_crowded()
    scheduler.add_request(make_request("c"))
    scheduler.finish_requests(["c"], FinishReason.ABORT)
    failed = scheduler.schedule()
    assert (failed.finished_request_ids, failed.preempted_request_ids) == (["c"], ["b"])
    scheduler.fail_step(failed, "broken")
    told = scheduler.schedule()
    assert sorted(told.finished_request_ids) == ["a", "b", "c"]
    assert [request.request_id for request in told.new_requests] == ["b"]


# Ends


def test_an_id_in_use_is_refused_and_the_first_request_goes_on() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 5))
    with pytest.raises(RequestError, match="'a' is in use"):
        scheduler.add_request(make_request("a", 6))
    assert scheduler.schedule().num_scheduled_tokens == {"a": 5}


def test_a_refused_request_is_unknown_afterwards() -> None:
    scheduler = make_scheduler(max_model_len=8)
    with pytest.raises(ContextLengthError):
        scheduler.add_request(make_request("a", 8))
    assert not scheduler.has_work()
    scheduler.add_request(make_request("a", 7))
    assert scheduler.has_work()


def test_aborting_unknown_and_repeated_ids_is_harmless() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a"))
    outputs = scheduler.finish_requests(["x", "a", "a"], FinishReason.ABORT)
    assert [output.request_id for output in outputs] == ["a"]
    assert scheduler.finish_requests(["a"], FinishReason.ABORT) == []


def test_an_abort_leaves_what_was_computed_in_the_prefix_cache() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 9))
    step(scheduler, a=[7])
    scheduler.finish_requests(["a"], FinishReason.ABORT)
    scheduler.add_request(make_request("a", 9))
    assert scheduler.schedule().new_requests[0].num_computed_tokens == 8


def test_an_abort_of_a_chunked_prompt_leaves_its_computed_chunks_in_the_prefix_cache() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=8)
    scheduler.add_request(make_request("a", 30))
    step(scheduler)
    step(scheduler)
    scheduler.finish_requests(["a"], FinishReason.ABORT)
    scheduler.add_request(make_request("a", 30))
    assert scheduler.schedule().new_requests[0].num_computed_tokens == 16


def test_after_everybody_is_aborted_the_gauges_are_back() -> None:
    scheduler = make_scheduler(max_num_seqs=3)
    names = [f"r{index}" for index in range(8)]
    for name in names:
        scheduler.add_request(make_request(name))
    step(scheduler, **{name: [7] for name in names})
    scheduler.finish_requests(names, FinishReason.ABORT)
    stats = scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_usage) == (0, 0, 0.0)
    assert scheduler.has_work(), "the worker must still be told"
    assert sorted(scheduler.schedule().finished_request_ids) == names
    assert not scheduler.has_work()


@pytest.mark.parametrize(
    ("prior", "params", "reason", "stop_reason"),
    [
        ([5, 6], SamplingParams(max_tokens=2), FinishReason.LENGTH, None),
        ([5, 99], SamplingParams(max_tokens=9), FinishReason.STOP, None),
        ([5, 77], SamplingParams(max_tokens=9, stop_token_ids=(77,)), FinishReason.STOP, 77),
        ([5] * 12, SamplingParams(max_tokens=None), FinishReason.LENGTH, None),
    ],
)
def test_a_request_that_was_complete_when_it_came_ends_without_a_step_and_without_tokens(
    prior: list[int], params: SamplingParams, reason: FinishReason, stop_reason: int | None
) -> None:
    scheduler = make_scheduler(max_model_len=16)
    scheduler.add_request(make_request("a", 4, prior_output_ids=prior, params=params, eos_ids=(99,)))
    assert scheduler.has_work()
    scheduled, (output,) = step(scheduler)
    assert scheduled.num_scheduled_tokens == {}
    assert (output.finish_reason, output.stop_reason, output.new_token_ids) == (reason, stop_reason, [])
    assert not scheduler.has_work()


def test_the_id_of_a_complete_request_is_in_use_until_its_end_is_told() -> None:
    scheduler = make_scheduler()
    complete = make_request("a", prior_output_ids=[5], params=SamplingParams(max_tokens=1))
    scheduler.add_request(complete)
    with pytest.raises(RequestError, match="in use"):
        scheduler.add_request(complete)
    step(scheduler)
    scheduler.add_request(complete)
    assert len(step(scheduler)[1]) == 1


def test_prior_outputs_count_for_limits_and_are_not_sent_again() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 4, prior_output_ids=[5, 6, 7], params=SamplingParams(max_tokens=4)))
    scheduled, (output,) = step(scheduler, a=[8])
    assert scheduled.new_requests[0].output_ids == [5, 6, 7]
    assert (output.new_token_ids, output.finish_reason) == ([8], FinishReason.LENGTH)


def test_an_output_that_fills_the_context_ends_with_length() -> None:
    scheduler = make_scheduler(max_model_len=8)
    scheduler.add_request(long_running("a", 6))
    step(scheduler, a=[7])
    _, (output,) = step(scheduler, a=[8])
    assert output.finish_reason is FinishReason.LENGTH


# State


def test_the_counters_count() -> None:
    scheduler = make_scheduler()
    prompt = list(range(9))
    scheduler.add_request(make_request("a", prompt_ids=prompt, params=SamplingParams(max_tokens=2)))
    step(scheduler, a=[7])
    step(scheduler, a=[7])
    scheduler.add_request(make_request("b", prompt_ids=prompt, params=SamplingParams(max_tokens=1)))
    step(scheduler, b=[7])
    step(scheduler)
    stats = scheduler.stats()
    assert (stats.num_prompt_tokens, stats.num_generation_tokens, stats.num_steps) == (9 + 1, 3, 3)
    assert (stats.prefix_queries_tokens, stats.prefix_hits_tokens) == (18, 8)


def test_without_prefix_caching_nothing_is_looked_up() -> None:
    scheduler = make_scheduler(prefix_caching=False)
    prompt = list(range(9))
    for name in "ab":
        scheduler.add_request(make_request(name, prompt_ids=prompt))
        scheduled, _ = step(scheduler, a=[7], b=[7])
        assert scheduled.new_requests[0].num_computed_tokens == 0
    assert scheduler.stats().prefix_queries_tokens == 0


def test_the_prefix_cache_is_reset_only_when_nobody_holds_a_block() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 9))
    step(scheduler, a=[7])
    assert not scheduler.reset_prefix_cache()
    scheduler.finish_requests(["a"], FinishReason.ABORT)
    assert scheduler.reset_prefix_cache()
    scheduler.add_request(make_request("a", 9))
    assert scheduler.schedule().new_requests[0].num_computed_tokens == 0


def test_a_step_looks_at_no_more_waiting_requests_than_it_admits() -> None:
    looks = 0

    class Curious(PreemptFirst):
        def may_admit(self, request: RequestView, num_running: int) -> str | None:
            nonlocal looks
            looks += 1
            return None

    scheduler = make_scheduler(max_num_seqs=4, strategy=Curious())
    for index in range(500):
        scheduler.add_request(make_request(f"r{index}", 3))
    scheduled = scheduler.schedule()
    assert len(scheduled.num_scheduled_tokens) == 4
    assert looks == 4


def test_a_strategy_can_hold_admissions_back_and_cut_chunks() -> None:
    class OneAtATime(PreemptFirst):
        def may_admit(self, request: RequestView, num_running: int) -> str | None:
            return "one at a time" if num_running else None

        def chunk_tokens(self, request: RequestView, num_new_tokens: int, token_budget: int) -> int:
            return 3

    scheduler = make_scheduler(strategy=OneAtATime())
    for name in "ab":
        scheduler.add_request(make_request(name, 5))
    assert step(scheduler)[0].num_scheduled_tokens == {"a": 3}
    assert step(scheduler, a=[7])[0].num_scheduled_tokens == {"a": 2}


@pytest.mark.parametrize(("wish", "given"), [(-5, 8), (0, 8), (1, 1), (100, 8)])
def test_a_strategys_chunk_is_kept_within_what_is_possible_and_senseless_ones_are_the_defaults(
    wish: int, given: int
) -> None:
    class Wish(PreemptFirst):
        def chunk_tokens(self, request: RequestView, num_new_tokens: int, token_budget: int) -> int:
            return wish

    scheduler = make_scheduler(max_num_batched_tokens=8, strategy=Wish())
    scheduler.add_request(make_request("a", 20))
    assert scheduler.schedule().num_scheduled_tokens == {"a": given}
