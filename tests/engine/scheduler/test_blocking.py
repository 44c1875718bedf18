from __future__ import annotations

import pytest

from corefw.engine.scheduler.scheduler import DefaultScheduler
from corefw.errors import EngineError
from corefw.messages.outputs import FinishReason
from tests.engine.scheduler.setup import Gate, make_request, make_scheduler, result_of


def make_blocked() -> tuple[DefaultScheduler, Gate]:
    scheduler, gate = make_scheduler(max_num_seqs=1), Gate()
    for name in "ab":
        scheduler.add_request(make_request(name))
    scheduler.block("a", gate)
    return scheduler, gate


def test_a_blocked_request_is_passed_by() -> None:
    scheduler, _ = make_blocked()
    assert list(scheduler.schedule().num_scheduled_tokens) == ["b"]
    assert (scheduler.stats().num_running, scheduler.stats().num_waiting) == (1, 1)
    assert scheduler.blocked_reasons() == {"a": "grammar is being compiled"}


def test_once_ready_it_has_its_old_place_in_the_queue() -> None:
    scheduler, gate = make_blocked()
    gate.is_open = True
    assert list(scheduler.schedule().num_scheduled_tokens) == ["a"]


def test_a_blocked_request_alone_is_no_work_until_it_is_ready() -> None:
    scheduler, gate = make_scheduler(), Gate()
    scheduler.add_request(make_request("a"))
    scheduler.block("a", gate)
    assert not scheduler.has_work()
    gate.is_open = True
    assert scheduler.has_work()


def test_a_blocked_request_can_be_aborted_and_its_blocker_is_asked_no_more() -> None:
    scheduler, gate = make_blocked()
    (output,) = scheduler.finish_requests(["a"], FinishReason.ABORT)
    assert output.finish_reason is FinishReason.ABORT
    gate.is_open = True
    assert list(scheduler.schedule().num_scheduled_tokens) == ["b"]
    assert scheduler.blocked_reasons() == {}


def test_a_running_request_can_not_be_blocked() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a"))
    scheduled = scheduler.schedule()
    with pytest.raises(EngineError, match="can't go from running to blocked"):
        scheduler.block("a", Gate())
    assert scheduler.update(scheduled, result_of(scheduled, a=[7]))[0].new_token_ids == [7]


def test_an_unknown_request_can_not_be_blocked() -> None:
    with pytest.raises(EngineError, match="'x' can't be blocked: it is unknown"):
        make_scheduler().block("x", Gate())
