from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.errors import EngineError
from corefw.messages.outputs import ModelRunnerOutput
from corefw.messages.sampling import SamplingParams
from corefw.messages.scheduling import SchedulerOutput
from corefw.runtime.model_runner.prompt_logprobs import MAX_PROMPT_ROWS
from corefw.runtime.model_runner.runner import ModelRunner
from corefw.runtime.warm_up import warm_up
from tests.runtime.context_model import VOCAB, ContextModel, expected_token
from tests.runtime.runners import context_plan, context_runner
from tests.runtime.steps import HandScheduler, Sequence


def _run(runner: ModelRunner, step: SchedulerOutput) -> ModelRunnerOutput:
    runner.execute_model(step)
    return runner.sample_tokens()


def _step(runner: ModelRunner, scheduler: HandScheduler, counts: dict[str, int] | None = None) -> ModelRunnerOutput:
    result = _run(runner, scheduler.schedule(counts))
    scheduler.update(result)
    return result


def _greedy(prompt_ids: list[int], count: int) -> list[int]:
    tokens = list(prompt_ids)
    for _ in range(count):
        tokens.append(expected_token(tokens))
    return tokens[len(prompt_ids) :]


def _setup(num_groups: int = 1, **sizes: int) -> tuple[ContextModel, ModelRunner, HandScheduler]:
    model = ContextModel()
    plan = context_plan(num_groups=num_groups)
    return model, context_runner(model, plan, **sizes), HandScheduler(plan.num_blocks, plan.block_size, num_groups)


@pytest.mark.parametrize("num_groups", [1, 2])
def test_prompts_and_decodes_of_several_requests_in_one_step_see_their_own_context(num_groups: int) -> None:
    _, runner, scheduler = _setup(num_groups)
    one = scheduler.add(Sequence("one", [5, 9, 2, 11, 30]))
    _step(runner, scheduler)
    two = scheduler.add(Sequence("two", list(range(13))))
    for _ in range(9):
        _step(runner, scheduler)
    assert one.output_ids == _greedy(one.prompt_ids, 10)
    assert two.output_ids == _greedy(two.prompt_ids, 9)


def test_a_prompt_in_chunks_gets_its_token_in_the_step_that_computes_its_last_one() -> None:
    model, runner, scheduler = _setup()
    one = scheduler.add(Sequence("one", list(range(20))))
    other = scheduler.add(Sequence("other", [1, 2]))
    _step(runner, scheduler, {"other": 2})
    for count, sampled in ((7, []), (12, []), (1, [expected_token(one.prompt_ids)])):
        result = _step(runner, scheduler, {"one": count, "other": 1})
        assert dict(zip(result.request_ids, result.sampled_token_ids, strict=True))["one"] == sampled
    assert model.num_logits_rows == [1, 1, 1, 2]
    assert other.output_ids == _greedy(other.prompt_ids, 4)


def test_a_step_in_which_nobody_is_sampled_computes_no_logits() -> None:
    model, runner, scheduler = _setup()
    scheduler.add(Sequence("one", list(range(20))))
    result = _step(runner, scheduler, {"one": 5})
    assert result == ModelRunnerOutput(request_ids=["one"], sampled_token_ids=[[]])
    assert model.num_logits_rows == []


def test_a_request_of_the_batch_may_sit_a_step_out() -> None:
    _, runner, scheduler = _setup()
    sequences = [scheduler.add(Sequence(name, [ord(name) % 50, 3])) for name in "abcd"]
    _step(runner, scheduler)
    result = _step(runner, scheduler, {"d": 1, "b": 1})
    assert result.request_ids == ["b", "d"]
    _step(runner, scheduler)
    assert [len(one.output_ids) for one in sequences] == [2, 3, 2, 3]
    assert all(one.output_ids == _greedy(one.prompt_ids, len(one.output_ids)) for one in sequences)


def test_a_step_without_tokens_only_forgets_requests() -> None:
    model, runner, scheduler = _setup()
    scheduler.add(Sequence("one", [1]))
    _step(runner, scheduler)
    scheduler.finish("one")
    assert _step(runner, scheduler) == ModelRunnerOutput(request_ids=[], sampled_token_ids=[])
    assert runner.batch.request_ids == []
    assert model.num_tokens_seen == [1]


def test_an_id_that_ended_may_come_back_in_the_same_step_as_another_request() -> None:
    _, runner, scheduler = _setup()
    scheduler.add(Sequence("same", [1, 2, 3]))
    _step(runner, scheduler)
    scheduler.finish("same")
    again = scheduler.add(Sequence("same", [40, 41]))
    _step(runner, scheduler)
    assert again.output_ids == _greedy([40, 41], 1)


def test_ids_that_were_never_sent_are_forgotten_without_a_word() -> None:
    _, runner, scheduler = _setup()
    scheduler.finished, scheduler.preempted = ["ghost"], ["phantom"]
    one = scheduler.add(Sequence("one", [1]))
    _step(runner, scheduler)
    assert one.output_ids == _greedy([1], 1)


_RANDOM = SamplingParams(temperature=3.0, top_p=0.9, seed=-42, min_tokens=9, stop_token_ids=(4, 5), logprobs=3)


@pytest.mark.parametrize("leave_after", [0, 1, 7])
def test_a_preempted_request_goes_on_as_if_it_had_stayed(leave_after: int) -> None:
    outputs = []
    for preempts in (False, True):
        _, runner, scheduler = _setup()
        one = scheduler.add(Sequence("one", [7, 8, 9], _RANDOM, eos_ids=(0, 1)))
        scheduler.add(Sequence("noise", [3] * 5))
        logprobs = []
        for index in range(12):
            if preempts and index == leave_after + 1:
                scheduler.preempt("one")
                _step(runner, scheduler, {"noise": 1})
            result = _step(runner, scheduler)
            assert result.logprobs is not None
            logprobs.append(result.logprobs.logprobs.data)
        outputs.append((one.output_ids, logprobs))
    assert outputs[0] == outputs[1]


def test_a_request_that_comes_with_outputs_goes_on_as_if_they_had_been_made_here() -> None:
    _, runner, scheduler = _setup()
    whole = scheduler.add(Sequence("whole", [7, 8, 9], _RANDOM, eos_ids=(0, 1)))
    for _ in range(12):
        _step(runner, scheduler)
    _, other_runner, other_scheduler = _setup()
    moved = other_scheduler.add(Sequence("moved", [7, 8, 9], _RANDOM, eos_ids=(0, 1), output_ids=whole.output_ids[:6]))
    for _ in range(6):
        _step(other_runner, other_scheduler)
    assert moved.output_ids == whole.output_ids


def test_no_end_token_is_sampled_before_min_tokens() -> None:
    _, runner, scheduler = _setup()
    ends = tuple(range(60))
    params = SamplingParams(temperature=5.0, seed=1, min_tokens=6, stop_token_ids=ends[30:])
    one = scheduler.add(Sequence("one", [70], params, eos_ids=ends[:30]))
    free = scheduler.add(Sequence("free", [70], msgspec.structs.replace(params, ignore_eos=True), eos_ids=ends[:30]))
    for _ in range(40):
        _step(runner, scheduler)
    assert not set(one.output_ids[:6]) & set(ends)
    assert set(one.output_ids[6:]) & set(ends)
    assert not set(free.output_ids[:6]) & set(ends[30:])
    assert set(free.output_ids[:6]) & set(ends[:30])


def test_logprobs_come_for_the_rows_that_asked_with_the_largest_wish_as_width() -> None:
    _, runner, scheduler = _setup()
    scheduler.add(Sequence("none", [1]))
    scheduler.add(Sequence("two", [2], SamplingParams(temperature=0, seed=0, logprobs=2)))
    scheduler.add(Sequence("chunk", [3] * 9, SamplingParams(temperature=0, seed=0, logprobs=20)))
    scheduler.add(Sequence("zero", [4], SamplingParams(temperature=0, seed=0, logprobs=0)))
    result = _step(runner, scheduler, {"none": 1, "two": 1, "chunk": 4, "zero": 1})
    logprobs = result.logprobs
    assert logprobs is not None
    assert [result.request_ids[row] for row in logprobs.rows] == ["two", "zero"]
    token_ids = logprobs.token_ids.to_numpy()
    assert token_ids.shape == logprobs.logprobs.to_numpy().shape == (2, 3)
    assert token_ids.dtype == np.int32
    assert token_ids[:, 0].tolist() == [result.sampled_token_ids[row][0] for row in logprobs.rows]
    assert logprobs.ranks.to_numpy().tolist() == [1, 1]


def test_a_request_whose_parameters_leave_no_token_is_refused_alone() -> None:
    _, runner, scheduler = _setup()
    scheduler.add(Sequence("good", [1, 2]))
    params = SamplingParams(allowed_token_ids=(3,), bad_words_token_ids=((3, 3),), seed=0)
    scheduler.add(Sequence("stuck", [1, 2], params))
    assert not _step(runner, scheduler).refused
    result = _step(runner, scheduler)
    assert not result.failed
    assert list(result.refused) == ["stuck"]
    assert "no token to choose at output position 1" in result.refused["stuck"]
    scheduler.finish("stuck")
    _step(runner, scheduler)


@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_request_with_broken_logits_fails_alone(logprobs: int | None) -> None:
    _, runner, scheduler = _setup()
    good = scheduler.add(Sequence("good", [1, 2]))
    params = SamplingParams(temperature=1.0, seed=0, logprobs=logprobs)
    scheduler.add(Sequence("bad", [1, ContextModel.poisoned], params))
    result = _step(runner, scheduler)
    assert list(result.failed) == ["bad"]
    assert result.logprobs is None
    assert dict(zip(result.request_ids, result.sampled_token_ids, strict=True)) == {
        "good": _greedy([1, 2], 1),
        "bad": [],
    }
    scheduler.finish("bad")
    _step(runner, scheduler)
    assert good.output_ids == _greedy([1, 2], 2)


def test_a_scheduler_with_another_number_of_outputs_is_an_error_and_the_runner_survives() -> None:
    _, runner, scheduler = _setup()
    one = scheduler.add(Sequence("one", [1, 2]))
    other = scheduler.add(Sequence("other", [1, 2]))
    _step(runner, scheduler)
    one.output_ids.append(3)
    with pytest.raises(EngineError, match=r"request one: the scheduler knows 2 output tokens, this worker 1"):
        runner.execute_model(scheduler.schedule({"one": 2}))
    with pytest.raises(EngineError, match="without a step"):
        runner.sample_tokens()
    scheduler.finish("one")
    _step(runner, scheduler)
    assert other.output_ids == _greedy([1, 2], 2)


@pytest.mark.parametrize(
    ("counts", "num_blocks", "message"),
    [
        ({"one": 6}, 2, "5 tokens are known"),
        ({"one": 5}, 1, "blocks hold 4"),
        ({"one": 0}, 2, "0 tokens"),
        ({"ghost": 1}, 2, "ghost"),
    ],
)
def test_a_step_that_would_touch_what_isnt_the_requests_own_is_refused(
    counts: dict[str, int], num_blocks: int, message: str
) -> None:
    _, runner, scheduler = _setup()
    scheduler.add(Sequence("one", [1, 2, 3, 4, 5]))
    step = scheduler.schedule({"one": 5})
    new = msgspec.structs.replace(step.new_requests[0], block_ids=[[1, 2][:num_blocks]])
    with pytest.raises(EngineError, match=message):
        runner.execute_model(msgspec.structs.replace(step, new_requests=[new], num_scheduled_tokens=counts))


def test_more_tokens_or_requests_than_announced_are_refused() -> None:
    _, runner, scheduler = _setup(max_num_seqs=2, max_num_tokens=8)
    scheduler.add(Sequence("one", [1] * 9))
    with pytest.raises(EngineError, match="the step has 9 tokens, but at most 8"):
        runner.execute_model(scheduler.schedule())
    scheduler.finish("one")
    for name in "abc":
        scheduler.add(Sequence(name, [1]))
    with pytest.raises(EngineError, match="one more than the batch's 2 rows"):
        runner.execute_model(scheduler.schedule())


def test_warm_up_leaves_an_empty_batch_and_clean_blocks() -> None:
    for block_size, max_num_tokens in ((4, 256), (1, 256), (2, 1)):
        model = ContextModel()
        plan = context_plan(num_blocks=2, block_size=block_size)
        runner = context_runner(model, plan, max_num_tokens=max_num_tokens)
        warm_up(runner, plan, max_num_tokens=max_num_tokens)
        assert runner.batch.request_ids == []
        assert not model.attention_layers[0].pages.any()
        assert len(model.num_tokens_seen) == (1 if block_size == 1 else 2)


def test_warm_up_takes_a_block_of_its_own_for_every_group() -> None:
    model, plan = ContextModel(), context_plan(num_blocks=3, num_groups=2)
    runner = context_runner(model, plan)
    warm_up(runner, plan, max_num_tokens=256)
    assert not any(layer.pages.any() for layer in model.attention_layers)
    with pytest.raises(EngineError, match="2 KV blocks for 2 groups"):
        warm_up(runner, context_plan(num_blocks=2, num_groups=2), max_num_tokens=256)


_ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "step", "step", "chunk", "finish", "preempt", "pause"]), st.integers(0, 99)
    ),
    max_size=40,
)


@given(actions=_ACTIONS)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_order_of_arrivals_ends_and_preemptions_gives_every_request_its_own_tokens(
    actions: list[tuple[str, int]],
) -> None:
    _, runner, scheduler = _setup(max_num_seqs=4)
    ended: list[Sequence] = []
    for index, (action, number) in enumerate(actions):
        ids = list(scheduler.sequences)
        if action == "add" and len(ids) < 4:
            scheduler.add(Sequence(f"r{index}", [(number * k + index) % 90 for k in range(1 + number % 11)]))
        elif action == "finish" and ids:
            ended.append(scheduler.finish(ids[number % len(ids)]))
        elif action == "preempt" and ids:
            scheduler.preempt(ids[number % len(ids)])
        elif action == "pause" and ids:
            _step(runner, scheduler, {ids[number % len(ids)]: 1})
        elif action == "chunk":
            _step(runner, scheduler, dict.fromkeys(ids, 1))
        elif action == "step":
            _step(runner, scheduler)
    for sequence in (*ended, *scheduler.sequences.values()):
        context = list(sequence.prompt_ids)
        for token_id in sequence.output_ids:
            assert token_id == expected_token(context)
            context.append(token_id)


def test_logits_of_a_long_prompt_are_computed_for_a_few_positions_at_a_time() -> None:
    model, runner, scheduler = _setup()
    params = SamplingParams(temperature=0.0, seed=0, prompt_logprobs=1)
    scheduler.add(Sequence("scored", [(7 * i) % VOCAB for i in range(100)], params))
    scheduler.add(Sequence("plain", list(range(50))))
    assert _step(runner, scheduler, {"scored": 70, "plain": 50}).prompt_logprobs == {}
    result = _step(runner, scheduler)
    told = result.prompt_logprobs["scored"]
    assert told.token_ids.to_numpy()[:, 0].tolist() == [(7 * i) % VOCAB for i in range(1, 100)]
    assert max(model.num_logits_rows) <= MAX_PROMPT_ROWS
    assert _step(runner, scheduler).prompt_logprobs == {}


def test_logits_of_prompts_that_nobody_asked_for_arent_computed() -> None:
    model, runner, scheduler = _setup()
    scheduler.add(Sequence("plain", list(range(50))))
    _step(runner, scheduler)
    assert model.num_logits_rows == [1]
