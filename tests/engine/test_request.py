from __future__ import annotations

import pytest

from corefw.engine.request import Request, RequestStatus
from corefw.errors import EngineError
from corefw.messages.outputs import FinishReason
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams


def make_request(**fields: object) -> Request:
    raw: dict[str, object] = {"request_id": "r", "prompt_ids": [1, 2, 3], "params": SamplingParams(max_tokens=8)}
    return Request(EngineCoreRequest(**(raw | fields)))  # type: ignore[arg-type]


def test_prior_outputs_stand_behind_the_prompt_and_count_as_output() -> None:
    request = make_request(prior_output_ids=[7, 8])
    assert request.token_ids == [1, 2, 3, 7, 8]
    assert request.output_ids == [7, 8]
    assert (request.num_tokens, request.num_prompt_tokens, request.num_output_tokens) == (5, 3, 2)
    assert request.num_prior_tokens == 2


def test_appending_a_token_leaves_the_message_it_came_in_alone() -> None:
    raw = EngineCoreRequest(request_id="r", prompt_ids=[1], params=SamplingParams(max_tokens=8), prior_output_ids=[2])
    request = Request(raw)
    request.token_ids.append(3)
    assert (raw.prompt_ids, raw.prior_output_ids) == ([1], [2])


def test_ignore_eos_drops_every_end_token_but_no_stop_token() -> None:
    params = SamplingParams(max_tokens=8, ignore_eos=True, stop_token_ids=(5,))
    request = make_request(params=params, eos_ids=(5, 6))
    assert (request.end_ids, request.stop_ids) == (frozenset(), {5})


@pytest.mark.parametrize("reason", list(FinishReason))
def test_every_finish_reason_has_a_finished_status_that_nothing_leaves(reason: FinishReason) -> None:
    request = make_request()
    request.move_to(RequestStatus.finished(reason))
    assert request.status.is_finished
    for status in RequestStatus:
        with pytest.raises(EngineError, match="can't go from finished"):
            request.move_to(status)


def test_the_ways_between_statuses_are_those_written_down() -> None:
    alive = [status for status in RequestStatus if not status.is_finished]
    steps_to = {
        RequestStatus.WAITING: {RequestStatus.BLOCKED, RequestStatus.RUNNING},
        RequestStatus.BLOCKED: {RequestStatus.WAITING},
        RequestStatus.RUNNING: {RequestStatus.PREEMPTED},
        RequestStatus.PREEMPTED: {RequestStatus.BLOCKED, RequestStatus.RUNNING},
    }
    assert {start: {end for end in alive if is_way(start, end)} for start in alive} == steps_to


def is_way(start: RequestStatus, end: RequestStatus) -> bool:
    paths = {
        RequestStatus.WAITING: [],
        RequestStatus.BLOCKED: [RequestStatus.BLOCKED],
        RequestStatus.RUNNING: [RequestStatus.RUNNING],
        RequestStatus.PREEMPTED: [RequestStatus.RUNNING, RequestStatus.PREEMPTED],
    }
    request = make_request()
    for status in paths[start]:
        request.move_to(status)
    try:
        request.move_to(end)
    except EngineError:
        return False
    return True
