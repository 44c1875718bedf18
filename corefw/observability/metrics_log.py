"""The line that tells what the engine does, while it does something."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from corefw.observability.logging import get_logger
from corefw.observability.metrics import EngineStats

__all__ = ["LOG_INTERVAL_S", "StatsLine", "log_stats"]

logger = get_logger(__name__)

LOG_INTERVAL_S = 10.0


class StatsLine:
    """Makes a line of the figures since the one before.

    Args:
        read: gives the engine's newest figures.
        clock: monotonic.
    """

    def __init__(self, read: Callable[[], EngineStats], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._last = read()
        self._last_s = clock()

    def next(self) -> str | None:
        """The line; None while the engine was idle all the time."""
        stats, now_s = self._read(), self._clock()
        last, elapsed_s = self._last, now_s - self._last_s
        self._last, self._last_s = stats, now_s
        num_prompt = stats.num_prompt_tokens - last.num_prompt_tokens
        num_generated = stats.num_generation_tokens - last.num_generation_tokens
        num_looked_up = stats.prefix_queries_tokens - last.prefix_queries_tokens
        is_idle = not (stats.num_running or stats.num_waiting or num_prompt or num_generated)
        if is_idle or elapsed_s <= 0 or min(num_prompt, num_generated, num_looked_up) < 0:  # the engine began anew
            return None
        hits = stats.prefix_hits_tokens - last.prefix_hits_tokens
        hit_rate = f"{100 * hits / num_looked_up:.1f}%" if num_looked_up else "-"
        return (
            f"engine: {stats.num_running} running, {stats.num_waiting} waiting; "
            f"{num_prompt / elapsed_s:.1f} prompt and {num_generated / elapsed_s:.1f} generated tokens/s; "
            f"KV cache {100 * stats.kv_usage:.1f}% in use, prefix cache hits {hit_rate}"
        )


async def log_stats(read: Callable[[], EngineStats], interval_s: float = LOG_INTERVAL_S) -> None:
    """Log the line every so many seconds, until cancelled."""
    line = StatsLine(read)
    while True:
        await asyncio.sleep(interval_s)
        text = line.next()
        if text is not None:
            logger.info("%s", text)
