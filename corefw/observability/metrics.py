"""Prometheus metrics of one server. Requests are measured in the front end; gauges of the engine are read at scrape."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

__all__ = ["CONTENT_TYPE", "EngineStats", "Metrics", "RequestRecord"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FIRST_TOKEN_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_WHOLE_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class EngineStats(Protocol):
    """What is read of the engine's last step."""

    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def kv_usage(self) -> float: ...
    @property
    def num_preemptions(self) -> int: ...
    @property
    def prefix_queries_tokens(self) -> int: ...
    @property
    def prefix_hits_tokens(self) -> int: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_generation_tokens(self) -> int: ...


class Metrics:
    """Metrics in a registry of their own, so that two servers in one process don't share any.

    Args:
        model: value of the label ``model_name``.
        stats: gives the engine's newest figures; called at each scrape.
    """

    def __init__(self, model: str, stats: Callable[[], EngineStats]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(model, stats))
        self._requests = Counter(
            "corefw:requests",
            "Sequences that ended, by reason (stop, length, abort, error).",
            ["model_name", "finish_reason"],
            registry=self._registry,
        )
        self._first_token_s = Histogram(
            "corefw:time_to_first_token_seconds",
            "From a request's arrival to the first token, a sequence.",
            ["model_name"],
            registry=self._registry,
            buckets=_FIRST_TOKEN_BUCKETS_S,
        ).labels(model)
        self._whole_s = Histogram(
            "corefw:e2e_request_latency_seconds",
            "From a request's arrival to its end, a sequence.",
            ["model_name"],
            registry=self._registry,
            buckets=_WHOLE_BUCKETS_S,
        ).labels(model)
        self._model = model
        for reason in ("stop", "length", "abort", "error"):
            self._requests.labels(model, reason)

    def render(self) -> bytes:
        """The exposition in Prometheus' text format."""
        text: bytes = generate_latest(self._registry)
        return text

    def record(self, num_sequences: int, arrival_s: float) -> RequestRecord:
        """Start measuring a request that arrived then, on the monotonic clock."""
        return RequestRecord(self, num_sequences, arrival_s)

    def first_token(self, seconds: float) -> None:
        """A sequence has its first token."""
        self._first_token_s.observe(seconds)

    def ended(self, reason: str, seconds: float) -> None:
        """A sequence has ended."""
        self._requests.labels(self._model, reason).inc()
        self._whole_s.observe(seconds)


class RequestRecord:
    """Follows the sequences of one request; each is counted exactly once, whatever its end."""

    def __init__(self, metrics: Metrics, num_sequences: int, arrival_s: float) -> None:
        self._metrics = metrics
        self._start_s = arrival_s
        self._silent = set(range(num_sequences))
        self._unfinished = set(range(num_sequences))

    def saw(self, sequence: int, *, has_tokens: bool, finish_reason: str | None) -> None:
        """News of a sequence."""
        if has_tokens and sequence in self._silent:
            self._silent.discard(sequence)
            self._metrics.first_token(time.monotonic() - self._start_s)
        if finish_reason is not None and sequence in self._unfinished:
            self._unfinished.discard(sequence)
            self._metrics.ended(finish_reason, time.monotonic() - self._start_s)

    def close(self, reason: str) -> None:
        """Count what hasn't ended by itself. May be called again."""
        for _ in self._unfinished:
            self._metrics.ended(reason, time.monotonic() - self._start_s)
        self._unfinished.clear()


class _EngineCollector(Collector):  # type: ignore[misc]
    def __init__(self, model: str, stats: Callable[[], EngineStats]) -> None:
        self._model = model
        self._stats = stats

    def collect(self) -> Iterator[Any]:
        stats = self._stats()
        for name, text, value in (
            ("num_requests_running", "Requests that hold a batch slot.", stats.num_running),
            ("num_requests_waiting", "Requests that wait for a slot.", stats.num_waiting),
            ("kv_cache_usage", "Share of KV blocks in use, 0 to 1.", stats.kv_usage),
        ):
            yield self._family(GaugeMetricFamily, name, text, value)
        for name, text, value in (
            ("num_preemptions", "Requests put back for lack of KV blocks.", stats.num_preemptions),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_queries_tokens),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.prefix_hits_tokens),
            ("prompt_tokens", "Prompt tokens computed.", stats.num_prompt_tokens),
            ("generation_tokens", "Tokens generated.", stats.num_generation_tokens),
        ):
            yield self._family(CounterMetricFamily, name, text, value)

    def _family(self, kind: Any, name: str, text: str, value: float) -> Any:
        family = kind(f"corefw:{name}", text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family
