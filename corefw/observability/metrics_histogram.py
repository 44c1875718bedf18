"""A histogram that costs a fraction of a microsecond, because it has one writer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.utils import floatToGoString

__all__ = ["Histogram", "cumulative_buckets"]


class Histogram:
    """Counts values by bucket. Used by one thread; ``observe`` takes no lock.

    Args:
        bounds: upper bounds of the buckets, rising; a value belongs to the first that isn't below it.

    Attributes:
        counts: values a bucket, one more than bounds; they only grow.
        total: sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, ``times`` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)


def cumulative_buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Buckets as Prometheus wants them: each with what lies at or below its bound. No counts are zeros."""
    buckets, running = [], 0
    for position, bound in enumerate((*map(float, bounds), float("inf"))):
        running += counts[position] if position < len(counts) else 0
        buckets.append((floatToGoString(bound), float(running)))
    return buckets
