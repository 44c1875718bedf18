"""Prometheus metrics of one server: requests are measured in the front end, the engine is asked at each scrape."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from corefw.observability.metrics_catalog import (
    CACHE_INFO,
    EACH_ENGINE_GAUGES,
    EACH_ENGINE_TOKENS,
    ENGINE_COUNTERS,
    ENGINE_GAUGES,
    ENGINE_READY,
    FINISH_REASONS,
    HTTP_REQUESTS,
    INFO,
    PLUGIN_INFO,
    PLUGINS_QUARANTINED,
    REQUEST_HISTOGRAMS,
    REQUESTS,
    STEP_TOKEN_BOUNDS,
    STEP_TOKENS,
    Metric,
    Naming,
    PluginFigures,
    bounds_of,
)
from corefw.observability.metrics_histogram import Histogram, cumulative_buckets
from corefw.observability.metrics_record import FinishedSequence, RequestRecord
from corefw.observability.metrics_share import MetricsShare, summed

__all__ = ["CONTENT_TYPE", "OPENMETRICS_CONTENT_TYPE", "EngineStats", "Metrics", "MonotonicStats", "wants_openmetrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_OPENMETRICS = "application/openmetrics-text"
_QUALITY = re.compile(r";\s*q=([0-9.]{1,5})\s*(?:;|$)")
# Stands for all servers that died.
_DEAD = -1
# Method names that count; whatever else a client makes up is one more.
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})


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
    @property
    def num_restarts(self) -> int: ...
    @property
    def num_step_tokens(self) -> int: ...
    @property
    def step_token_counts(self) -> Sequence[int]: ...
    @property
    def engines(self) -> Sequence[EngineStats]: ...


class Metrics:
    """Everything that is counted, apart from any other server in the process. Used by one thread; ``render`` as well.

    Args:
        model: value of the label ``model_name``.
        stats: gives the engine's newest figures; called at each scrape.
        names: one of ``METRICS_NAMES``.
        max_model_len: largest bucket of token counts.
        info, cache_info: labels of the two metrics that are always 1.
        plugins: gives what is told of plugins; called at each scrape.
        is_ready: whether the engine can be relied on; called at each scrape.

    Attributes:
        on_total: called with this server's own part before it is told with that of the others.
    """

    def __init__(
        self,
        model: str,
        stats: Callable[[], EngineStats],
        *,
        names: str = "corefw",
        max_model_len: int = 131072,
        info: Mapping[str, str] | None = None,
        cache_info: Mapping[str, str] | None = None,
        plugins: Callable[[], PluginFigures] = PluginFigures,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self.naming = Naming(names, model)
        self.infos = ((INFO, dict(info or {})), (CACHE_INFO, dict(cache_info or {})))
        self.plugins = plugins
        self.is_ready = is_ready
        self.stats = MonotonicStats(stats)
        self.histograms = {metric.key: Histogram(bounds_of(metric, max_model_len)) for metric in REQUEST_HISTOGRAMS}
        self.ends = dict.fromkeys(FINISH_REASONS, 0)
        self.http_requests: Counter[tuple[str, str, int]] = Counter()
        self._others: dict[int, MetricsShare] = {}
        self.on_total: Callable[[MetricsShare], object] = lambda _: None
        self._first_token = self.histograms["time_to_first_token_seconds"]
        self._between_tokens = self.histograms["inter_token_latency_seconds"]
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(self))
        ProcessCollector(registry=self._registry)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The exposition and its content type: OpenMetrics where ``accept`` asks for it, else Prometheus' own text."""
        text: bytes
        if wants_openmetrics(accept):
            # Its default writes sample names with a colon differently from their families'.
            text = generate_openmetrics(self._registry, escaping=ALLOWUTF8)
            return text, OPENMETRICS_CONTENT_TYPE
        text = generate_latest(self._registry)
        return text, CONTENT_TYPE

    def record(self, prompt_lengths: Sequence[int], n: int, max_tokens: int | None, arrival_s: float) -> RequestRecord:
        """Start measuring a request that arrived then, on the monotonic clock, and now goes to the engine."""
        return RequestRecord(self, prompt_lengths, n, max_tokens, arrival_s)

    def share(self) -> MetricsShare:
        """What this server has counted."""
        return MetricsShare(
            histograms={key: (list(one.counts), one.total) for key, one in self.histograms.items()},
            ends=dict(self.ends),
            http_requests=[(*key, count) for key, count in self.http_requests.items()],
        )

    def take_share(self, server: int, share: MetricsShare) -> None:
        """What another server over the same engine has counted; from now on it is part of what is told."""
        self._others[server] = share

    def take_sum(self, share: MetricsShare, living: Collection[int]) -> None:
        """What all servers that died have counted together, in place of what is known of any but the living."""
        others = {server: known for server, known in self._others.items() if server in living}
        self._others = {_DEAD: share, **others}

    def total(self) -> MetricsShare:
        """Of this server and the others."""
        own = self.share()
        self.on_total(own)
        return summed((own, *self._others.values()))

    def http_request(self, method: str, route: str, status: int) -> None:
        """An HTTP request was answered; ``route`` is one of the server's, never what a client wrote."""
        self.http_requests[method if method in _METHODS else "other", route, status] += 1

    def first_token(self, seconds: float) -> None:
        """A sequence has its first token."""
        self._first_token.observe(seconds)

    def more_tokens(self, seconds: float, num_tokens: int) -> None:
        """So many tokens came, each this long after the one before."""
        self._between_tokens.observe(seconds, num_tokens)

    def ended(self, sequence: FinishedSequence) -> None:
        """A sequence has ended."""
        self.ends[sequence.finish_reason] += 1
        num_computed = sequence.num_prompt_tokens - sequence.num_cached_tokens
        for key, value in (
            ("e2e_request_latency_seconds", sequence.e2e_s),
            ("request_queue_time_seconds", sequence.queue_s),
            ("request_prefill_time_seconds", sequence.prefill_s),
            ("request_decode_time_seconds", sequence.decode_s),
            ("request_inference_time_seconds", sequence.inference_s),
            ("request_time_per_output_token_seconds", sequence.time_per_output_token_s),
            ("request_prompt_tokens", sequence.num_prompt_tokens),
            ("request_prefill_kv_computed_tokens", num_computed),
            ("request_generation_tokens", sequence.num_generation_tokens),
        ):
            if value is not None:
                self.histograms[key].observe(value)

    def prompt_ended(self, n: int, max_tokens: int | None, num_longest: int) -> None:
        """All sequences of a prompt have ended."""
        self.histograms["request_params_n"].observe(n)
        self.histograms["request_max_num_generation_tokens"].observe(num_longest)
        if max_tokens is not None:
            self.histograms["request_params_max_tokens"].observe(max_tokens)


class MonotonicStats:
    """The engine's figures with counters that never fall, though an engine that starts anew counts from 0 again.

    Args:
        read: gives the newest figures.
    """

    def __init__(self, read: Callable[[], EngineStats]) -> None:
        self._read = read
        self._last: list[int] = []
        self._before: list[int] = []

    def read(self) -> tuple[EngineStats, list[int], list[int]]:
        """Gauges as they are; counters in the order of ``ENGINE_COUNTERS``; tokens a step: sum, then counts."""
        stats = self._read()
        counts = [*stats.step_token_counts, *[0] * (len(STEP_TOKEN_BOUNDS) + 1)][: len(STEP_TOKEN_BOUNDS) + 1]
        now = [
            stats.num_preemptions,
            stats.prefix_queries_tokens,
            stats.prefix_hits_tokens,
            stats.num_prompt_tokens,
            stats.num_generation_tokens,
            stats.num_restarts,
            stats.num_step_tokens,
            *counts,
        ]
        self._last = self._last or [0] * len(now)
        self._before = self._before or [0] * len(now)
        if any(value < last for value, last in zip(now, self._last, strict=True)):
            self._before = [value + last for value, last in zip(self._before, self._last, strict=True)]
        self._last = now
        totals = [value + before for value, before in zip(now, self._before, strict=True)]
        return stats, totals[: len(ENGINE_COUNTERS)], totals[len(ENGINE_COUNTERS) :]


class _Collector(Collector):  # type: ignore[misc]
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._naming = metrics.naming

    def collect(self) -> Iterator[Any]:
        stats, counters, steps = self._metrics.stats.read()
        gauges = (stats.num_running, stats.num_waiting, stats.kv_usage)
        labels, total = self._naming.labels, self._metrics.total()
        for metric, value in zip(ENGINE_GAUGES, gauges, strict=True):
            yield from self._families(GaugeMetricFamily, metric, [(labels, value)])
        yield from self._families(GaugeMetricFamily, ENGINE_READY, [(labels, float(self._metrics.is_ready()))])
        for metric, count in zip(ENGINE_COUNTERS, counters, strict=True):
            yield from self._families(CounterMetricFamily, metric, [(labels, count)])
        yield from self._each_engine(stats.engines)
        ends = [({**labels, self._naming.reason_label: reason}, n) for reason, n in total.ends.items()]
        yield from self._families(CounterMetricFamily, REQUESTS, ends)
        yield from self._histogram(STEP_TOKENS, STEP_TOKEN_BOUNDS, steps[1:], steps[0])
        for metric in REQUEST_HISTOGRAMS:
            bounds = self._metrics.histograms[metric.key].bounds
            yield from self._histogram(metric, bounds, *total.histograms[metric.key])
        yield from self._http(total)
        for metric, info in self._metrics.infos:
            yield from self._families(GaugeMetricFamily, metric, [({**labels, **info}, 1)])
        yield from self._plugins()

    def _each_engine(self, engines: Sequence[EngineStats]) -> Iterator[Any]:
        if not engines:
            return
        labels = [{**self._naming.labels, "engine": str(index)} for index in range(len(engines))]
        gauges: tuple[list[float], ...] = (
            [engine.num_running + engine.num_waiting for engine in engines],
            [engine.kv_usage for engine in engines],
        )
        for metric, values in zip(EACH_ENGINE_GAUGES, gauges, strict=True):
            yield from self._families(GaugeMetricFamily, metric, list(zip(labels, values, strict=True)))
        num_tokens = [engine.num_generation_tokens for engine in engines]
        yield from self._families(CounterMetricFamily, EACH_ENGINE_TOKENS, list(zip(labels, num_tokens, strict=True)))

    def _plugins(self) -> Iterator[Any]:
        figures, labels = self._metrics.plugins(), self._naming.labels
        if figures.plugins:
            samples = [({**labels, **plugin}, 1) for plugin in figures.plugins]
            yield from self._families(GaugeMetricFamily, PLUGIN_INFO, samples)
        yield from self._families(GaugeMetricFamily, PLUGINS_QUARANTINED, [(labels, figures.num_quarantined)])

    def _families(self, kind: Any, metric: Metric, samples: Sequence[tuple[Mapping[str, str], float]]) -> Iterator[Any]:
        for name in self._naming.names(metric):
            family = kind(name, metric.help, labels=list(samples[0][0]))
            for labels, value in samples:
                family.add_metric(list(labels.values()), value)
            yield family

    def _histogram(self, metric: Metric, bounds: Sequence[float], counts: Sequence[int], total: float) -> Iterator[Any]:
        buckets = cumulative_buckets(bounds, counts)
        labels = self._naming.labels
        for name in self._naming.names(metric):
            family = HistogramMetricFamily(name, metric.help, labels=list(labels))
            family.add_metric(list(labels.values()), buckets, total)
            yield family

    def _http(self, total: MetricsShare) -> Iterator[Any]:
        counts: dict[tuple[str, ...], int] = {}
        name, labels = self._naming.http("", "", 0)
        for method, route, status, count in total.http_requests:
            values = tuple(self._naming.http(method, route, status)[1].values())
            counts[values] = counts.get(values, 0) + count
        family = CounterMetricFamily(name, HTTP_REQUESTS.help, labels=list(labels))
        for values, count in sorted(counts.items()):
            family.add_metric(list(values), count)
        yield family


def wants_openmetrics(accept: str) -> bool:
    """Whether a client that accepts this likes OpenMetrics at least as much as the plain text format."""
    best = {_OPENMETRICS: 0.0, "text/plain": 0.0}
    for item in accept.split(",")[:20]:
        kind = item.split(";", 1)[0].strip().lower()
        if kind in best:
            best[kind] = max(best[kind], _quality(item))
    return best[_OPENMETRICS] > 0 and best[_OPENMETRICS] >= best["text/plain"]


def _quality(item: str) -> float:
    found = _QUALITY.search(item)
    try:
        return float(found.group(1)) if found else 1.0
    except ValueError:
        return 0.0
