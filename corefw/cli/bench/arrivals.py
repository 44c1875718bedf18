"""When requests are sent."""

from __future__ import annotations

import math
import random

from corefw.errors import ConfigError

__all__ = ["arrival_times"]


def arrival_times(
    num_requests: int,
    rate: float,
    burstiness: float,
    rng: random.Random,
    ramp: tuple[str, float, float] | None = None,
) -> list[float]:
    """Seconds after the start, rising.

    Gaps are gamma distributed with shape ``burstiness`` and mean ``1 / rate``: 1 is a Poisson process, less comes in
    bursts, more is more even.

    Args:
        num_requests: how many.
        rate: requests per second; infinite sends all at once.
        burstiness: above 0.
        rng: the only source of chance.
        ramp: (``linear`` or ``exponential``, rate at the first request, rate at the last), instead of ``rate``.

    Raises:
        ConfigError: a rate or the burstiness isn't above 0.
    """
    rates = (rate,) if ramp is None else ramp[1:]
    if min(rates) <= 0 or burstiness <= 0:
        raise ConfigError("request rates and --burstiness must be above 0")
    if ramp is None and math.isinf(rate):
        return [0.0] * num_requests
    now_s = 0.0
    times = []
    for i in range(num_requests):
        times.append(now_s)
        current = rate if ramp is None else _ramped(ramp, i / max(1, num_requests - 1))
        now_s += rng.gammavariate(burstiness, 1 / (current * burstiness))
    return times


def _ramped(ramp: tuple[str, float, float], share: float) -> float:
    kind, first, last = ramp
    if kind == "linear":
        return first + (last - first) * share
    return float(first * (last / first) ** share)
