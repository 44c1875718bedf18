from __future__ import annotations

from corefw.engine.request import Request
from corefw.engine.scheduler.step import StepBuilder
from corefw.messages.scheduling import CachedRequests
from tests.engine.scheduler.setup import make_request


def make_step(budget: int = 20) -> StepBuilder:
    return StepBuilder(budget, num_groups=1)


def request(name: str, **fields: object) -> Request:
    return Request(make_request(name, **fields))  # type: ignore[arg-type]


def test_an_empty_step_says_nothing_but_its_number_and_who_finished() -> None:
    built = make_step().build(3, ["gone"])
    assert (built.step, built.finished_request_ids) == (3, ["gone"])
    assert built.total_num_scheduled_tokens == 0
    assert built.num_scheduled_tokens == {}
    assert built.block_ids_to_zero == [[]]


def test_a_new_request_is_told_whole_and_a_held_one_as_a_difference() -> None:
    step, new, held = make_step(), request("new", prior_output_ids=[8]), request("held")
    held.num_computed_tokens = 5
    held.token_ids.append(7)
    step.go_on(held, 1, [[6]])
    step.begin(new, 4, [[4, 5]], [[3, 4, 5]])
    built = step.build(1, [])
    (told,) = built.new_requests
    assert (told.request_id, told.prompt_ids, told.output_ids) == ("new", new.prompt_ids, [8])
    assert told.block_ids == [[3, 4, 5]]
    assert built.cached_requests == CachedRequests(
        request_ids=["held"], num_computed_tokens=[5], num_output_tokens=[1], new_block_ids=[[[6]]]
    )
    assert built.num_scheduled_tokens == {"held": 1, "new": 4}
    assert built.total_num_scheduled_tokens == 5


def test_blocks_that_were_just_allocated_are_cleared_and_cached_ones_are_not() -> None:
    step = make_step()
    step.begin(request("a"), 4, [[4, 5]], [[3, 4, 5]])
    assert step.build(1, []).block_ids_to_zero == [[4, 5]]


def test_what_a_preempted_request_took_is_given_back() -> None:
    step, victim = make_step(), request("victim")
    step.go_on(victim, 4, [[4]])
    assert step.token_budget == 16
    assert step.take_back(victim)
    built = step.build(1, [])
    assert step.token_budget == 20
    assert built.num_scheduled_tokens == {}
    assert built.block_ids_to_zero == [[]]
    assert built.preempted_request_ids == ["victim"]


def test_a_preempted_request_without_a_share_costs_nothing() -> None:
    step = make_step()
    assert not step.take_back(request("victim"))
    assert step.token_budget == 20
    assert step.preempted_ids == ["victim"]
