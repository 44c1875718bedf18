"""What servers count goes on though they die, and takes no more room for it."""

from __future__ import annotations

import random

import msgspec

from corefw.messages.outputs import SchedulerStats
from corefw.observability.metrics import Metrics
from corefw.observability.metrics_share import MetricsShare
from corefw.server.api_channel import Counted
from corefw.server.shared_counts import SharedCounts


def share(num_ends: int) -> MetricsShare:
    return MetricsShare(histograms={"x": ([num_ends], float(num_ends))}, ends={"stop": num_ends}, http_requests=[])


def total(counted: tuple[Counted, ...]) -> int:
    return sum(one.share.ends["stop"] for one in counted)


def test_of_many_servers_that_died_there_is_one_sum() -> None:
    counts = SharedCounts()
    for number in range(1000):
        counts.take(number, share(1))
        counts.take(number, share(3))
        counts.server_gone(number)
        assert len(counts.all()) == 1
    assert total(counts.all()) == 3000
    counts.take(1000, share(7))
    assert [one.living for one in counts.all()] == [(1000,), None]
    assert total(counts.all()) == 3007


def test_one_that_had_counted_nothing_is_no_news() -> None:
    counts = SharedCounts()
    assert counts.server_gone(3) is None
    assert counts.all() == ()


def test_who_misses_messages_is_right_again_with_the_next_sum() -> None:
    chance, counts, server = random.Random(1), SharedCounts(), Metrics("m", SchedulerStats)
    nothing = server.share()

    def share_of(num_ends: int) -> MetricsShare:
        return msgspec.structs.replace(nothing, ends={**nothing.ends, "stop": num_ends})

    def hear(told: Counted) -> None:
        if told.living is None:
            server.take_share(told.server, told.share)
        else:
            server.take_sum(told.share, told.living)

    def perhaps_hear(told: Counted | None) -> None:
        if told is not None and chance.random() < 0.5:
            hear(told)

    for number in range(200):
        perhaps_hear(counts.take(number, share_of(number)))
        if number % 3 == 0:
            perhaps_hear(counts.server_gone(number))
    told = counts.server_gone(198) or counts.server_gone(199)
    assert told is not None
    for one in (told, *counts.all()[1:]):
        hear(one)
    assert server.total().ends["stop"] == sum(range(200))
