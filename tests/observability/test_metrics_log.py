"""The line of the engine's state."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from corefw.messages.outputs import SchedulerStats
from corefw.observability.metrics_log import StatsLine, log_stats


class Engine:
    """Figures and a clock."""

    def __init__(self) -> None:
        self.stats = SchedulerStats()
        self.now_s = 0.0

    def line(self) -> StatsLine:
        return StatsLine(lambda: self.stats, lambda: self.now_s)


def test_the_line_has_rates_since_the_one_before() -> None:
    engine = Engine()
    line = engine.line()
    engine.now_s = 10.0
    engine.stats = SchedulerStats(
        num_running=3,
        num_waiting=1,
        kv_usage=0.125,
        num_prompt_tokens=1205,
        num_generation_tokens=250,
        prefix_queries_tokens=200,
        prefix_hits_tokens=50,
    )
    assert line.next() == (
        "engine: 3 running, 1 waiting; 120.5 prompt and 25.0 generated tokens/s; "
        "KV cache 12.5% in use, prefix cache hits 25.0%"
    )
    engine.now_s = 20.0
    engine.stats = SchedulerStats(
        num_running=3,
        num_prompt_tokens=1205,
        num_generation_tokens=300,
        prefix_queries_tokens=200,
        prefix_hits_tokens=50,
    )
    assert line.next() == (
        "engine: 3 running, 0 waiting; 0.0 prompt and 5.0 generated tokens/s; KV cache 0.0% in use, prefix cache hits -"
    )


def test_an_idle_engine_is_silent_and_what_ended_between_two_lines_is_told() -> None:
    engine = Engine()
    line = engine.line()
    engine.now_s += 10
    assert line.next() is None
    engine.now_s += 10
    engine.stats = SchedulerStats(num_generation_tokens=1)
    assert line.next() is not None
    engine.now_s += 10
    assert line.next() is None


def test_an_engine_that_began_anew_gives_no_negative_rates() -> None:
    engine = Engine()
    engine.stats = SchedulerStats(num_running=1, num_generation_tokens=100)
    line = engine.line()
    engine.now_s += 10
    engine.stats = SchedulerStats(num_running=1, num_generation_tokens=5)
    assert line.next() is None
    engine.now_s += 10
    engine.stats = SchedulerStats(num_running=1, num_generation_tokens=15)
    assert "1.0 generated" in (line.next() or "")


async def test_it_is_logged_while_the_engine_is_busy(caplog: pytest.LogCaptureFixture) -> None:
    stats = SchedulerStats()
    with caplog.at_level(logging.INFO, logger="corefw"):
        task = asyncio.create_task(log_stats(lambda: stats, 0.02))
        await asyncio.sleep(0.1)
        assert caplog.records == []
        stats = SchedulerStats(num_running=1)
        await asyncio.sleep(0.1)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert "1 running" in caplog.records[0].getMessage()
