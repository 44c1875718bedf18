"""The exposition: names, texts, formats."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from corefw.messages.outputs import SchedulerStats
from corefw.observability.metrics import (
    CONTENT_TYPE,
    OPENMETRICS_CONTENT_TYPE,
    Metrics,
    MonotonicStats,
    wants_openmetrics,
)
from corefw.observability.metrics_catalog import (
    ENGINE_COUNTERS,
    METRICS_NAMES,
    REQUEST_HISTOGRAMS,
    STEP_TOKEN_BOUNDS,
    bounds_of,
)
from corefw.observability.metrics_share import summed

PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;"
    "version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def used_metrics(names: str = "corefw") -> Metrics:
    stats = SchedulerStats(num_running=2, kv_usage=0.5, num_step_tokens=40, step_token_counts=(1, 2, *[0] * 11, 3))
    metrics = Metrics('a "model"\\', lambda: stats, names=names, info={"version": "1"}, cache_info={"block_size": "16"})
    metrics.record([5, 6], 2, 16, 0.0).close("abort")
    metrics.http_request("GET", "/v1/models/{model:path}", 200)
    return metrics


@pytest.mark.parametrize("names", METRICS_NAMES)
@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_all_of_it_parses_and_every_metric_says_what_it_is(names: str, accept: str) -> None:
    text, _ = used_metrics(names).render(accept)
    families = list((parse_openmetrics if accept else parse_text)(text.decode()))
    assert [family.name for family in families if not family.documentation or family.type == "unknown"] == []
    ours = [family for family in families if not family.name.startswith("process_")]
    assert len(ours) > 25
    assert [family.name for family in ours if not family.samples] == []
    assert len({family.name for family in families}) == len(families)


@pytest.mark.parametrize("names", METRICS_NAMES)
def test_both_formats_have_the_same_samples(names: str) -> None:
    metrics = used_metrics(names)

    def samples(accept: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        text = metrics.render(accept)[0].decode()
        families = (parse_openmetrics if accept else parse_text)(text)
        found = (sample for family in families if not family.name.startswith("process_") for sample in family.samples)
        return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in found}

    assert samples("") == samples("application/openmetrics-text")


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0, text/plain; q=0.5", True),
        ("application/openmetrics-text; q=0.2, text/plain; q=0.5", False),
        ("application/openmetrics-text; q=0", False),
        (PROMETHEUS_3, True),
        ("application/openmetrics-text; q=..", False),
        ("application/openmetrics-text; version=abc", True),
    ],
)
def test_the_format_is_what_the_client_likes_best(accept: str, expected: bool) -> None:
    assert wants_openmetrics(accept) is expected
    content_type = used_metrics().render(accept)[1]
    assert content_type == (OPENMETRICS_CONTENT_TYPE if expected else CONTENT_TYPE)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(max_size=200))
def test_no_accept_header_breaks_it(accept: str) -> None:
    assert wants_openmetrics(accept) in (True, False)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=20))
def test_counters_never_fall_whatever_becomes_of_the_engine(story: list[tuple[int, bool]]) -> None:
    now = SchedulerStats()
    stats = MonotonicStats(lambda: now)
    last, total = 0, 0
    for grown, starts_anew in story:
        before = 0 if starts_anew else now.num_generation_tokens
        now = SchedulerStats(num_generation_tokens=before + grown)
        counters = stats.read()[1]
        value = counters[[metric.key for metric in ENGINE_COUNTERS].index("generation_tokens")]
        assert value >= last
        last, total = value, total + grown
        assert value <= total


def test_counters_of_an_engine_that_died_stay_and_those_of_the_next_come_on_top() -> None:
    now = SchedulerStats(num_prompt_tokens=10, num_step_tokens=10, step_token_counts=(1, *[0] * 13))
    stats = MonotonicStats(lambda: now)
    stats.read()
    now = SchedulerStats()
    stats.read()
    now = SchedulerStats(num_prompt_tokens=4)
    _, counters, steps = stats.read()
    assert counters[3] == 14
    assert steps[:2] == [10, 1]


def test_steps_without_counts_are_zeros() -> None:
    _, _, steps = MonotonicStats(SchedulerStats).read()
    assert steps == [0] * (len(STEP_TOKEN_BOUNDS) + 2)


@pytest.mark.parametrize("max_model_len", [1, 2, 7, 512, 8192, 131072])
def test_buckets_of_token_counts_reach_up_to_the_context_length(max_model_len: int) -> None:
    metric = next(metric for metric in REQUEST_HISTOGRAMS if metric.bounds is None)
    bounds = bounds_of(metric, max_model_len)
    assert list(bounds) == sorted(set(bounds))
    assert bounds[0] == 1
    assert max_model_len / 2.5 <= bounds[-1] <= max_model_len


def test_methods_that_clients_make_up_are_one() -> None:
    metrics = used_metrics()
    for index in range(100):
        metrics.http_request(f"BREW{index}", "other", 405)
    lines = [
        line for line in metrics.render()[0].decode().splitlines() if line.startswith("corefw:http_requests_total")
    ]
    assert len(lines) == 2
    assert lines[1].endswith(" 100.0")


def test_statuses_count_by_their_first_digit_under_the_other_names() -> None:
    metrics = used_metrics("vllm")
    for status in (200, 201, 404):
        metrics.http_request("GET", "other", status)
    text = metrics.render()[0].decode()
    assert 'http_requests_total{handler="other",method="GET",status="2xx"} 2.0' in text
    assert 'http_requests_total{handler="other",method="GET",status="4xx"} 1.0' in text


def test_figures_of_servers_over_one_engine_are_told_as_one() -> None:
    one, other = used_metrics(), used_metrics()
    other.http_request("POST", "/v1/completions", 400)
    one.take_share(1, other.share())
    one.take_share(1, other.share())  # newer figures of the same one replace the older ones
    text = one.render()[0].decode()
    assert 'corefw:requests_total{finish_reason="abort",model_name="a \\"model\\"\\\\"} 8.0' in text
    assert 'corefw:http_requests_total{method="GET",route="/v1/models/{model:path}",status="200"} 2.0' in text
    assert 'corefw:http_requests_total{method="POST",route="/v1/completions",status="400"} 1.0' in text
    assert 'corefw:request_prompt_tokens_count{model_name="a \\"model\\"\\\\"} 8.0' in text
    assert 'corefw:generation_tokens_total{model_name="a \\"model\\"\\\\"} 0.0' in text  # the engine's, told once


def test_servers_that_died_are_one_sum_beside_the_living() -> None:
    one, other = Metrics("m", SchedulerStats), used_metrics()
    share = other.share()
    for number in range(100):
        one.take_share(number, share)
        one.take_sum(summed([share] * (number + 1)), living=())
    one.take_share(100, share)
    one.take_sum(summed([share] * 100), living=(100,))
    assert one.total() == summed([share] * 101)
    assert len(one._others) == 2


def test_several_engines_have_figures_of_their_own() -> None:
    stats = SchedulerStats(num_running=3, engines=(SchedulerStats(num_running=1), SchedulerStats(num_waiting=2)))
    text = Metrics("m", lambda: stats).render()[0].decode()
    assert 'corefw:engine_num_requests{engine="0",model_name="m"} 1.0' in text
    assert 'corefw:engine_num_requests{engine="1",model_name="m"} 2.0' in text
    assert "corefw:engine_num" not in Metrics("m", SchedulerStats).render()[0].decode()


@pytest.mark.parametrize("names", METRICS_NAMES)
def test_restarts_of_the_engine_and_whether_there_is_one_are_told_under_the_same_names(names: str) -> None:
    ready = True
    metrics = Metrics("m", lambda: SchedulerStats(num_restarts=2), names=names, is_ready=lambda: ready)

    def value(name: str) -> float:
        (line,) = (line for line in metrics.render()[0].decode().splitlines() if line.startswith(f"corefw:{name}{{"))
        return float(line.split()[-1])

    assert (value("engine_restarts_total"), value("engine_ready")) == (2, 1)
    ready = False
    assert value("engine_ready") == 0


def test_what_a_client_is_told_other_servers_hear_first() -> None:
    one, other = used_metrics(), used_metrics()
    one.on_total = lambda share: other.take_share(1, share)
    one.http_request("POST", "/v1/completions", 400)
    one.render()
    line = 'corefw:http_requests_total{method="POST",route="/v1/completions",status="400"} 1.0'
    assert line in other.render()[0].decode()
