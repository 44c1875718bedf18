from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.builtins.schedulers.fcfs import FirstComeFirstServed
from corefw.engine.request import Request
from corefw.engine.scheduler.waiting import WaitingQueue
from corefw.interfaces.scheduler import RequestView, SchedulerStrategy
from tests.engine.scheduler.setup import make_request


class ByPriority(SchedulerStrategy):
    name: ClassVar[str] = "by_priority"

    def queue_key(self, request: RequestView) -> tuple[float, ...]:
        return (request.priority,)

    def victim(self, running: Sequence[RequestView]) -> int:
        return 0


def request(name: str, priority: int = 0) -> Request:
    return Request(make_request(name, priority=priority))


def drain(queue: WaitingQueue) -> list[str]:
    order = []
    while (first := queue.peek()) is not None:
        queue.remove(first)
        order.append(first.request_id)
    return order


def test_equal_keys_leave_in_order_of_entry() -> None:
    queue = WaitingQueue(FirstComeFirstServed())
    for name in "abc":
        queue.add(request(name))
    assert drain(queue) == ["a", "b", "c"]


def test_the_strategy_decides_before_the_order_of_entry() -> None:
    queue = WaitingQueue(ByPriority())
    for name, priority in [("a", 2), ("b", 1), ("c", 2), ("d", 0)]:
        queue.add(request(name, priority))
    assert drain(queue) == ["d", "b", "a", "c"]


def test_a_request_put_back_goes_before_those_with_its_key_but_not_before_smaller_keys() -> None:
    queue = WaitingQueue(ByPriority())
    for name, priority in [("a", 1), ("b", 2)]:
        queue.add(request(name, priority))
    queue.put_back(request("c", 2))
    queue.put_back(request("d", 2))
    assert drain(queue) == ["a", "d", "c", "b"]


def test_a_request_that_left_and_comes_again_has_its_old_place() -> None:
    queue = WaitingQueue(FirstComeFirstServed())
    requests = [request(name) for name in "abc"]
    for each in requests:
        queue.add(each)
    queue.remove(requests[0])
    assert queue.peek() is requests[1]
    queue.add(requests[0])
    assert drain(queue) == ["a", "b", "c"]


def test_a_removed_request_is_never_seen_again() -> None:
    queue = WaitingQueue(FirstComeFirstServed())
    first, second = request("a"), request("b")
    queue.add(first)
    queue.add(second)
    queue.remove(first)
    assert first not in queue
    assert len(queue) == 1
    assert drain(queue) == ["b"]


def test_another_request_may_take_the_id_of_a_removed_one() -> None:
    queue = WaitingQueue(FirstComeFirstServed())
    old, new = request("a"), request("a")
    queue.add(old)
    queue.remove(old)
    queue.add(new)
    assert queue.peek() is new


def test_removed_requests_do_not_pile_up() -> None:
    queue = WaitingQueue(FirstComeFirstServed())
    queue.add(request("keep"))
    for index in range(10_000):
        each = request(str(index))
        queue.add(each)
        queue.remove(each)
    assert len(queue._heap) < 200


def test_looking_at_the_first_of_many_costs_no_look_at_the_others() -> None:
    """A comparison of every key would show in the number of keys read."""
    reads = 0

    class Counting(FirstComeFirstServed):
        def queue_key(self, request: RequestView) -> tuple[float, ...]:
            nonlocal reads
            reads += 1
            return ()

    queue = WaitingQueue(Counting())
    for index in range(1000):
        queue.add(request(str(index)))
    reads = 0
    for _ in range(100):
        queue.peek()
    assert reads == 0


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(["add", "back", "remove", "pop"]), st.integers(0, 2)), max_size=60))
def test_it_behaves_like_a_sorted_list(steps: list[tuple[str, int]]) -> None:
    queue = WaitingQueue(ByPriority())
    model: list[tuple[int, int, Request]] = []
    for turn, (what, number) in enumerate(steps, start=1):
        if what in ("add", "back"):
            each = request(str(turn), number)
            (queue.add if what == "add" else queue.put_back)(each)
            model.append((number, turn if what == "add" else -turn, each))
            model.sort(key=lambda entry: entry[:2])
        elif model:
            gone = model.pop(0 if what == "pop" else number % len(model))[2]
            queue.remove(gone)
        assert len(queue) == len(model)
        assert queue.peek() is (model[0][2] if model else None)


@pytest.mark.parametrize("name", ["a", "zz"])
def test_an_empty_queue_has_no_first(name: str) -> None:
    queue = WaitingQueue(FirstComeFirstServed())
    assert queue.peek() is None
    each = request(name)
    queue.add(each)
    queue.remove(each)
    assert queue.peek() is None
