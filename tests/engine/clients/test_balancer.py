from __future__ import annotations

from collections import Counter

from corefw.engine.clients.balancer import Balancer
from corefw.messages.outputs import SchedulerStats
from corefw.messages.request import EngineCoreRequest
from tests.engine.fake_engine import request


def beginning_with(*ids: int, salt: str | None = None) -> EngineCoreRequest:
    made: EngineCoreRequest = request("a", prompt_ids=list(ids))
    return EngineCoreRequest(request_id="a", prompt_ids=list(ids), params=made.params, cache_salt=salt)


def unlike(number: int) -> EngineCoreRequest:
    return beginning_with(number, number, number, number, 5)


def test_unlike_requests_are_spread_evenly() -> None:
    balancer = Balancer(3, 4)
    assert Counter(balancer.place(unlike(number)) for number in range(9)) == {0: 3, 1: 3, 2: 3}


def test_an_engine_gets_less_while_it_has_more() -> None:
    balancer = Balancer(2, 4)
    first = [balancer.place(unlike(number)) for number in range(4)]
    assert first == [0, 1, 0, 1]
    balancer.ended(1)
    balancer.ended(1)
    assert [balancer.place(unlike(number)) for number in (10, 11)] == [1, 1]


def test_requests_of_other_front_ends_count() -> None:
    balancer = Balancer(2, 4)
    balancer.report(0, SchedulerStats(num_running=3, num_waiting=2))
    assert [balancer.place(unlike(number)) for number in range(5)] == [1] * 5


def test_what_was_sent_since_the_report_counts_on_top_of_it() -> None:
    balancer = Balancer(2, 4)
    balancer.report(0, SchedulerStats(num_running=2))
    balancer.report(1, SchedulerStats(num_running=2))
    assert Counter(balancer.place(unlike(number)) for number in range(4)) == {0: 2, 1: 2}


def test_full_kv_cache_makes_an_engine_less_wanted() -> None:
    balancer = Balancer(2, 4)
    balancer.report(0, SchedulerStats(num_running=2, kv_usage=0.9))
    balancer.report(1, SchedulerStats(num_running=3, kv_usage=0.1))
    assert balancer.place(unlike(1)) == 1


def test_a_beginning_goes_where_it_was_before() -> None:
    balancer = Balancer(2, 4)
    balancer.place(unlike(1))
    home = balancer.place(beginning_with(7, 7, 7, 7, 1))
    balancer.ended(0)
    balancer.ended(1)
    assert home == 1
    assert balancer.place(beginning_with(7, 7, 7, 7, 2)) == home


def test_the_longest_known_beginning_decides() -> None:
    balancer = Balancer(2, 4)
    system = [1, 1, 1, 1]
    first = balancer.place(beginning_with(*system, 2, 2, 2, 2, 9))
    second = balancer.place(beginning_with(*system, 3, 3, 3, 3, 9))
    third = balancer.place(beginning_with(*system, 4, 4, 4, 4, 9))
    for home in (first, second, third):
        balancer.ended(home)
    assert (first, second, third) == (0, 0, 1)
    assert balancer.place(beginning_with(*system, 4, 4, 4, 4, 9, 9)) == 1
    balancer.ended(1)
    assert balancer.place(beginning_with(*system, 3, 3, 3, 3, 9, 9)) == 0


def test_a_beginning_shorter_than_a_block_binds_nobody() -> None:
    balancer = Balancer(2, 4)
    assert [balancer.place(beginning_with(7, 7, 7)) for _ in range(4)] == [0, 1, 0, 1]


def test_an_overloaded_engine_loses_its_beginnings_to_the_idlest() -> None:
    balancer = Balancer(2, 4)
    homes = [balancer.place(beginning_with(7, 7, 7, 7)) for _ in range(8)]
    assert homes[:3] == [0, 0, 1]
    assert Counter(homes) == {0: 4, 1: 4}


def test_the_same_tokens_under_another_salt_are_another_beginning() -> None:
    balancer = Balancer(2, 4)
    assert balancer.place(beginning_with(7, 7, 7, 7, salt="a")) == 0
    assert balancer.place(beginning_with(7, 7, 7, 7, salt="b")) == 1


def test_an_engine_that_is_away_gets_nothing_while_another_is_there() -> None:
    balancer = Balancer(3, 4)
    assert balancer.place(beginning_with(7, 7, 7, 7)) == 0
    assert [balancer.place(beginning_with(7, 7, 7, 7), {0}) for _ in range(4)] == [1, 1, 2, 2]
    assert [balancer.place(unlike(number), {0, 1, 2}) for number in range(2)] == [0, 0]
