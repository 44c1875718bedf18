"""Stat loggers are called beside the loop, within bounds, and each until it fails too often."""

from __future__ import annotations

import threading
import time

import pytest

from corefw.errors import PluginError
from corefw.interfaces.stat_logger import FinishedRequest, StatLogger
from corefw.messages.outputs import SchedulerStats
from corefw.plugin_system.contributions import Contribution, Guarded
from corefw.server.stat_loggers import StatLoggers
from tests.server.serving import wait_until


def finished(name: str) -> FinishedRequest:
    return FinishedRequest(request_id=name, model="demo", route="", tags={}, sequences=())


class Slow(StatLogger):
    """Takes as long as a test wants."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.go_on = threading.Event()
        self.takes_s = 0.0
        self.closed = False

    def record_finished(self, request: FinishedRequest) -> None:
        self.go_on.wait(10)
        time.sleep(self.takes_s)
        self.seen.append(request.request_id)

    def close(self) -> None:
        self.closed = True


def guarded(logger: StatLogger) -> Guarded[StatLogger]:
    return Guarded(Contribution("slow", "test", "stat_logger_plugins", logger))


@pytest.mark.parametrize("interval_s", ["1", None, 0, float("nan"), float("inf")])
def test_an_interval_that_is_none_stops_the_start(interval_s: object) -> None:
    class Odd(StatLogger):
        pass

    Odd.interval_s = interval_s  # type: ignore[assignment]
    with pytest.raises(PluginError, match="test/slow has the interval_s"):
        StatLoggers([guarded(Odd())], SchedulerStats)


async def test_who_tells_never_waits_and_what_is_too_much_is_left_out() -> None:
    slow = Slow()
    loggers = StatLoggers([guarded(slow)], SchedulerStats)
    loggers.start()
    begin_s = time.monotonic()
    for number in range(10_000):
        loggers.finished(finished(str(number)))
    assert time.monotonic() - begin_s < 1
    slow.go_on.set()
    await loggers.stop()
    assert 4096 <= len(slow.seen) <= 4097
    assert slow.closed


async def test_one_that_takes_too_long_is_quarantined_after_three_calls() -> None:
    slow = Slow()
    slow.takes_s = 0.02
    slow.go_on.set()
    guard = guarded(slow)
    loggers = StatLoggers([guard], SchedulerStats, max_call_s=0.01)
    loggers.start()
    for number in range(5):
        loggers.finished(finished(str(number)))
    wait_until(lambda: guard.quarantined is not None)
    await loggers.stop()
    assert slow.seen == ["0", "1", "2"]
    assert "a stat logger has 0.01 s" in str(guard.quarantined)
