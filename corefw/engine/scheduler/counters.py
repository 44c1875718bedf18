"""What the scheduler counts from its start on."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from corefw.engine.request import Request
from corefw.messages.outputs import SchedulerStats
from corefw.observability.metrics_catalog import STEP_TOKEN_BOUNDS

__all__ = ["Counters"]


@dataclass(slots=True)
class Counters:
    """Totals since the start; the fields are those of ``SchedulerStats``."""

    num_steps: int = 0
    num_preemptions: int = 0
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    num_step_tokens: int = 0
    step_token_counts: list[int] = field(default_factory=lambda: [0] * (len(STEP_TOKEN_BOUNDS) + 1))

    def count_step(self, num_tokens: int) -> None:
        """A step was put together; one without tokens doesn't count."""
        if num_tokens:
            self.num_steps += 1
            self.num_step_tokens += num_tokens
            self.step_token_counts[bisect_left(STEP_TOKEN_BOUNDS, num_tokens)] += 1

    def count_lookup(self, request: Request) -> None:
        """A request was admitted for the first time, with its prefix looked up."""
        self.prefix_queries_tokens += request.num_prompt_tokens
        self.prefix_hits_tokens += request.num_cached_tokens or 0

    def count_computed(self, request: Request, num_tokens: int) -> None:
        """So many tokens were just added to the request's computed ones."""
        num_left = request.num_prompt_tokens - (request.num_computed_tokens - num_tokens)
        if num_left > 0:
            self.num_prompt_tokens += min(num_tokens, num_left)

    def stats(self, num_running: int, num_waiting: int, kv_usage: float) -> SchedulerStats:
        """The totals, with the gauges of this moment."""
        return SchedulerStats(
            num_running=num_running,
            num_waiting=num_waiting,
            kv_usage=kv_usage,
            num_preemptions=self.num_preemptions,
            prefix_queries_tokens=self.prefix_queries_tokens,
            prefix_hits_tokens=self.prefix_hits_tokens,
            num_prompt_tokens=self.num_prompt_tokens,
            num_generation_tokens=self.num_generation_tokens,
            num_steps=self.num_steps,
            num_step_tokens=self.num_step_tokens,
            step_token_counts=tuple(self.step_token_counts),
        )
