"""The arithmetic of one request's figures, against a model that sees the whole story at its end."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.messages.outputs import FinishReason, RequestTimes
from corefw.observability.metrics import Metrics
from corefw.observability.metrics_histogram import Histogram, cumulative_buckets
from corefw.observability.metrics_record import FinishedSequence, RequestRecord


@dataclass
class News:
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    num_prompt_tokens: int = 7
    num_cached_tokens: int = 0


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Sink:
    """Keeps everything that is told."""

    first_s: list[float] = field(default_factory=list)
    gaps: list[tuple[float, int]] = field(default_factory=list)
    ends: list[FinishedSequence] = field(default_factory=list)
    prompts: list[tuple[int, int | None, int]] = field(default_factory=list)

    def first_token(self, seconds: float) -> None:
        self.first_s.append(seconds)

    def more_tokens(self, seconds: float, num_tokens: int) -> None:
        self.gaps.append((seconds, num_tokens))

    def ended(self, sequence: FinishedSequence) -> None:
        self.ends.append(sequence)

    def prompt_ended(self, n: int, max_tokens: int | None, num_longest: int) -> None:
        self.prompts.append((n, max_tokens, num_longest))


# One piece of news: which prompt and output, after how many milliseconds, how many tokens, how it ended.
_NEWS = st.tuples(
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 5000),
    st.integers(0, 5),
    st.sampled_from([None, None, None, *FinishReason]),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(_NEWS, max_size=40), st.sampled_from(["abort", "error"]))
def test_figures_are_those_of_the_whole_story(
    story: list[tuple[int, int, int, int, FinishReason | None]], rest: str
) -> None:
    clock, sink = Clock(), Sink()
    record = RequestRecord(sink, [7, 7, 7], 3, 5, 99.0, clock)
    told: dict[tuple[int, int], list[tuple[float, int]]] = {(p, i): [] for p in range(3) for i in range(3)}
    ended: dict[tuple[int, int], tuple[str, float]] = {}
    for prompt, index, wait_ms, num_tokens, reason in story:
        clock.now_s += wait_ms / 1000
        record.prompt(prompt).saw(index, News([1] * num_tokens, reason), None)
        if (prompt, index) not in ended:
            told[prompt, index].append((clock.now_s, num_tokens))
            if reason is not None:
                ended[prompt, index] = (reason.value, clock.now_s)
    clock.now_s += 1.0
    record.close(rest)
    record.close(rest)
    for key in told:
        ended.setdefault(key, (rest, clock.now_s))

    tokens = {key: [(at, n) for at, n in news if n] for key, news in told.items()}
    assert sorted(s.finish_reason for s in sink.ends) == sorted(reason for reason, _ in ended.values())
    assert sum(s.e2e_s for s in sink.ends) == pytest.approx(sum(at - 99.0 for _, at in ended.values()))
    assert sum(sink.first_s) == pytest.approx(sum(news[0][0] - 99.0 for news in tokens.values() if news))
    assert len(sink.first_s) == sum(bool(news) for news in tokens.values())
    num_gaps = sum(sum(n for _, n in news) - 1 for news in tokens.values() if news)
    assert sum(times for _, times in sink.gaps) == num_gaps
    spans_s = [news[-1][0] - news[0][0] for news in tokens.values() if news]
    assert sum(gap * times for gap, times in sink.gaps) == pytest.approx(sum(spans_s))
    assert sum(s.decode_s or 0.0 for s in sink.ends) == pytest.approx(sum(spans_s))
    assert sum(s.num_generation_tokens for s in sink.ends) == sum(n for news in tokens.values() for _, n in news)
    longest = [max(sum(n for _, n in tokens[p, i]) for i in range(3)) for p in range(3)]
    assert sorted(sink.prompts) == sorted((3, 5, num) for num in longest)
    assert record.finished == sink.ends


def test_tokens_that_come_together_share_the_time_since_those_before() -> None:
    clock, sink = Clock(), Sink()
    prompt = RequestRecord(sink, [7], 1, None, 100.0, clock).prompt(0)
    for now_s, num_tokens in ((101.0, 1), (101.5, 1), (103.5, 4)):
        clock.now_s = now_s
        prompt.saw(0, News([1] * num_tokens), None)
    assert sink.first_s == [1.0]
    assert sink.gaps == [(0.5, 1), (0.5, 4)]


def test_tokens_behind_a_first_one_that_comes_with_them_are_gaps_of_no_time() -> None:
    clock, sink = Clock(101.0), Sink()
    prompt = RequestRecord(sink, [7], 1, None, 100.0, clock).prompt(0)
    prompt.saw(0, News([1, 2, 3]), None)
    clock.now_s = 102.0
    prompt.saw(0, News([4], FinishReason.STOP), None)
    assert sink.gaps == [(0.0, 2), (1.0, 1)]
    assert sink.ends[0].time_per_output_token_s == pytest.approx(1 / 3)


def test_the_engine_tells_of_queue_and_prefill() -> None:
    clock, sink = Clock(100.5), Sink()
    prompt = RequestRecord(sink, [9], 1, 4, 100.0, clock).prompt(0)
    clock.now_s = 103.1
    prompt.saw(0, News([1]), RequestTimes(101.0, 103.0))
    clock.now_s = 104.1
    prompt.saw(0, News([2], FinishReason.LENGTH, 9, 5), None)
    (end,) = sink.ends
    assert (end.queue_s, end.prefill_s) == (0.5, 2.0)
    assert end.decode_s == pytest.approx(1.0)
    assert end.inference_s == pytest.approx(3.0)
    assert (end.num_prompt_tokens, end.num_cached_tokens, end.num_generation_tokens) == (9, 5, 2)


def test_what_nobody_told_is_not_measured() -> None:
    clock, sink = Clock(), Sink()
    RequestRecord(sink, [9], 1, 4, 100.0, clock).close("abort")
    (end,) = sink.ends
    times = (end.time_to_first_token_s, end.queue_s, end.prefill_s, end.decode_s, end.inference_s)
    assert times == (None, None, None, None, None)
    assert end.time_per_output_token_s is None


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 4)), max_size=30))
def test_a_histogram_counts_like_prometheus_own(values: list[tuple[float, int]]) -> None:
    from prometheus_client import CollectorRegistry
    from prometheus_client import Histogram as Theirs

    bounds = (0.5, 1.0, 25.0, 75.0)
    ours, theirs = Histogram(bounds), Theirs("x", "x", buckets=bounds, registry=CollectorRegistry())
    for value, times in values:
        ours.observe(value, times)
        for _ in range(times):
            theirs.observe(value)
    samples = {(s.name, s.labels.get("le")): s.value for family in theirs.collect() for s in family.samples}
    assert dict(cumulative_buckets(ours.bounds, ours.counts)) == {
        le: value for (name, le), value in samples.items() if name == "x_bucket" and le
    }
    assert ours.count == samples["x_count", None]
    assert ours.total == pytest.approx(samples["x_sum", None])


def test_an_ended_sequence_is_in_every_histogram_once() -> None:
    metrics = Metrics("m", lambda: None)  # type: ignore[arg-type, return-value]
    prompt = metrics.record([4], 1, 3, 0.0).prompt(0)
    prompt.saw(0, News([1]), RequestTimes(1.0, 2.0))
    prompt.saw(0, News([1], FinishReason.STOP), None)
    assert {key: histogram.count for key, histogram in metrics.histograms.items()} == dict.fromkeys(
        metrics.histograms, 1
    )
