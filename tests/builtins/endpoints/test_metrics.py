"""What a Prometheus server scrapes."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.server.serving import scripted, serving, wait_until

NAMES = {
    "corefw:num_requests_running",
    "corefw:num_requests_waiting",
    "corefw:kv_cache_usage",
    "corefw:num_preemptions",
    "corefw:prefix_cache_queries",
    "corefw:prefix_cache_hits",
    "corefw:prompt_tokens",
    "corefw:generation_tokens",
    "corefw:requests",
    "corefw:time_to_first_token_seconds",
    "corefw:e2e_request_latency_seconds",
}


def test_every_figure_is_there_and_parses() -> None:
    with serving(scripted()) as server:
        answer = server.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert set(families) >= NAMES
    samples = [sample for name in NAMES for sample in families[name].samples]
    assert {sample.labels["model_name"] for sample in samples} == {"demo"}


def test_gauges_follow_the_engine_and_latencies_the_requests() -> None:
    engine = scripted("abc", delay_s=0.05)
    with serving(engine) as server:
        assert server.post("completions", {"prompt": "a", "n": 2}).status_code == 200
        wait_until(lambda: not engine.running)
        assert server.metric("corefw:num_requests_running") == 0
        assert server.metric("corefw:generation_tokens_total") == 8
        assert server.metric("corefw:time_to_first_token_seconds_count") == 2
        first_s = server.metric("corefw:time_to_first_token_seconds_sum") / 2
        whole_s = server.metric("corefw:e2e_request_latency_seconds_sum") / 2
        assert 0.04 < first_s < whole_s


def test_two_servers_in_one_process_share_no_figures() -> None:
    with serving(scripted()) as one, serving(scripted()) as other:
        one.post("completions", {"prompt": "a"})
        assert one.metric("corefw:time_to_first_token_seconds_count") == 1
        assert other.metric("corefw:time_to_first_token_seconds_count") == 0
