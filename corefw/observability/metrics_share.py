"""What one of several servers has counted, on its way to the others: any of them may be asked for the sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

__all__ = ["MetricsShare", "summed"]


class MetricsShare(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the start of a server.

    Attributes:
        histograms: by key, values a bucket, and their sum.
        ends: sequences that ended, by reason.
        http_requests: (method, route, status, how many).
    """

    histograms: dict[str, tuple[list[int], float]]
    ends: dict[str, int]
    http_requests: list[tuple[str, str, int, int]]


def summed(shares: Iterable[MetricsShare]) -> MetricsShare:
    """Of all these servers together, which have the same buckets; one share at least."""
    listed = list(shares)
    histograms = {}
    for key in listed[0].histograms:
        counts, totals = zip(*(share.histograms[key] for share in listed), strict=True)
        histograms[key] = ([sum(column) for column in zip(*counts, strict=True)], sum(totals))
    http: Counter[tuple[str, str, int]] = Counter()
    for share in listed:
        for method, route, status, count in share.http_requests:
            http[method, route, status] += count
    return MetricsShare(
        histograms=histograms,
        ends={reason: sum(share.ends[reason] for share in listed) for reason in listed[0].ends},
        http_requests=[(*key, count) for key, count in http.items()],
    )
