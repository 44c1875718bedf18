"""Conformance suite of stat loggers."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from corefw.interfaces.stat_logger import FinishedRequest, StatLogger
from corefw.messages.outputs import SchedulerStats
from corefw.observability.metrics_record import FinishedSequence
from corefw.testing.suite import PluginSuite

__all__ = ["StatLoggerSuite"]

_LIMIT_S = 1.0


class StatLoggerSuite(PluginSuite):
    """For ``corefw.stat_logger_plugins``."""

    plugin: ClassVar[type[StatLogger]]
    group = "stat_logger_plugins"

    def make(self) -> StatLogger:
        """A logger; override it to look at what it wrote."""
        return self.plugin()

    def test_its_interval_is_a_time(self) -> None:
        assert self.plugin.interval_s > 0

    def test_it_takes_figures_before_and_after_the_first_step(self) -> None:
        self._call("record_stats", SchedulerStats(), SchedulerStats(num_running=3, num_generation_tokens=10))

    def test_it_takes_a_request_that_was_answered(self) -> None:
        self._call("record_finished", _finished("stop", num_tokens=7, tags={"team": "a"}))

    def test_it_takes_a_request_that_never_got_a_token(self) -> None:
        self._call("record_finished", _finished("abort", num_tokens=0))

    def test_it_takes_a_request_that_failed(self) -> None:
        self._call("record_finished", _finished("error", num_tokens=2, error="the engine failed"))

    def test_it_can_be_closed_without_having_been_told_anything(self) -> None:
        self._call("record_stats")

    def _call(self, method: str, *arguments: Any) -> None:
        """Each call, and ``close``, in less than the time after which a call has failed."""
        logger = self.make()
        calls = [(method, (argument,)) for argument in arguments]
        for name, given in (*calls, ("close", ())):
            started = time.monotonic()
            getattr(logger, name)(*given)
            took_s = time.monotonic() - started
            assert took_s < _LIMIT_S, f"{name}() took {took_s:.1f} s; after {_LIMIT_S:g} s it counts as a failure"


def _finished(
    reason: str, *, num_tokens: int, tags: dict[str, str] | None = None, error: str | None = None
) -> FinishedRequest:
    seconds = 0.5 if num_tokens else None
    sequence = FinishedSequence(
        finish_reason=reason,
        num_prompt_tokens=5,
        num_cached_tokens=0,
        num_generation_tokens=num_tokens,
        e2e_s=1.0,
        time_to_first_token_s=seconds,
        queue_s=seconds,
        prefill_s=seconds,
        decode_s=seconds,
        inference_s=seconds,
        time_per_output_token_s=seconds,
    )
    return FinishedRequest(
        request_id="request", model="demo", route="/v1/completions", tags=tags or {}, sequences=(sequence,), error=error
    )
