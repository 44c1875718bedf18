from __future__ import annotations

import threading

import pytest

from corefw.plugin_system.events import EventQueue


def test_events_leave_once_in_order_with_their_topic_process_and_time() -> None:
    queue = EventQueue("worker")
    assert queue.put("mine.a", 1)
    assert queue.put("mine.b", {"x": [2]})
    events, num_dropped = queue.take()
    assert [(event.topic, event.data, event.process) for event in events] == [
        ("mine.a", 1, "worker"),
        ("mine.b", {"x": [2]}, "worker"),
    ]
    assert events[0].time_s <= events[1].time_s
    assert num_dropped == 0
    assert queue.take() == ([], 0)


def test_what_finds_no_room_is_dropped_and_counted_once() -> None:
    queue = EventQueue("worker", limit=2)
    assert [queue.put("mine.a", index) for index in range(5)] == [True, True, False, False, False]
    events, num_dropped = queue.take()
    assert [event.data for event in events] == [0, 1]
    assert num_dropped == 3
    assert queue.put("mine.a", 5)
    assert queue.take()[1] == 0


def test_another_queues_events_and_losses_are_taken_over() -> None:
    queue, other = EventQueue("engine_core", limit=2), EventQueue("worker", limit=2)
    for index in range(3):
        other.put("mine.a", index)
    queue.put("mine.b", 0)
    assert not queue.extend(*other.take())
    events, num_dropped = queue.take()
    assert [(event.topic, event.process) for event in events] == [("mine.b", "engine_core"), ("mine.a", "worker")]
    assert num_dropped == 2


def test_only_plain_data_are_taken() -> None:
    with pytest.raises(TypeError, match=r"the event mine.a has a object"):
        EventQueue("worker").put("mine.a", object())


def test_threads_lose_nothing_while_somebody_takes() -> None:
    queue, taken = EventQueue("worker", limit=100_000), []

    def emit() -> None:
        for index in range(500):
            queue.put("mine.a", index)

    threads = [threading.Thread(target=emit) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken += queue.take()[0]
    taken += queue.take()[0]
    assert len(taken) == 2000
