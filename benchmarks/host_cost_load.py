"""What both halves of ``host_cost.py`` have to do alike. Imports the standard library alone: one half has no corefw."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

__all__ = ["BLOCK_SIZE", "Clocks", "output_len", "prompt_ids", "summary", "timed"]

BLOCK_SIZE = 16
Clocks = dict[str, list[float]]
_MAX_WORD = 997


def prompt_ids(index: int, context: int) -> list[int]:
    """Of the request of that number, at least ``context`` long; what two of them share is less than a block.

    Lengths spread over a block as if at random, so that a step fills as many blocks as any other.
    """
    num_words = context + (index * 40503 >> 7) % BLOCK_SIZE
    return [1 + index % _MAX_WORD, 1 + index // _MAX_WORD, *(1 + word % _MAX_WORD for word in range(num_words))]


def output_len(running: int, turnover: int, index: int, num_steps: int) -> int:
    """Tokens of that request's output: beyond all steps, or so many that ``turnover`` requests end in a step."""
    if not turnover:
        return num_steps + 1
    length = running // turnover
    return 1 + index * length // running if index < running else length


def timed(clocks: Clocks, part: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call; how long it took goes to the part's clock."""
    start_s = time.perf_counter()
    result = function(*args)
    clocks[part].append(time.perf_counter() - start_s)
    return result


def summary(times_s: list[float]) -> dict[str, float]:
    """In milliseconds."""
    figures = {"median_ms": statistics.median(times_s), "mean_ms": statistics.fmean(times_s)}
    return {name: round(figure * 1000, 4) for name, figure in figures.items()}
