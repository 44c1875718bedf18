from __future__ import annotations

import pytest

from corefw.builtins.schedulers.priority import Priority
from corefw.engine.request import Request
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.plugin_system.manager import PluginManager


def make_request(name: str, priority: int, arrival_s: float) -> Request:
    params = SamplingParams(max_tokens=1)
    return Request(
        EngineCoreRequest(request_id=name, prompt_ids=[1], params=params, priority=priority, arrival_s=arrival_s)
    )


def test_the_smaller_number_goes_first_and_of_equal_ones_the_earlier_arrival() -> None:
    requests = [make_request("late", 0, 9.0), make_request("low", 5, 1.0), make_request("early", 0, 2.0)]
    requests += [make_request("urgent", -1, 50.0)]
    order = sorted(requests, key=Priority().queue_key)
    assert [request.request_id for request in order] == ["urgent", "early", "late", "low"]


@pytest.mark.parametrize(
    ("running", "victim"),
    [
        ([(0, 1.0), (2, 1.0), (1, 9.0)], 1),
        ([(1, 3.0), (1, 9.0), (1, 5.0)], 1),
        ([(1, 3.0), (1, 3.0)], 1),
        ([(7, 0.0)], 0),
    ],
)
def test_the_victim_is_the_one_that_would_go_last(running: list[tuple[int, float]], victim: int) -> None:
    assert Priority().victim([make_request(f"{i}", *each) for i, each in enumerate(running)]) == victim


def test_it_comes_in_through_its_group() -> None:
    assert PluginManager.discover().get("scheduler_strategies", "priority") is Priority
