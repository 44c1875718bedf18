"""What a Prometheus server scrapes."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from corefw.frontend.text_engine import TextEngine
from corefw.messages.outputs import FinishReason
from corefw.testing.scripted_engine import ScriptedFailure
from tests.server.raw_client import send
from tests.server.serving import Running, scripted, serving, wait_until

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
    "corefw:step_tokens",
    "corefw:time_to_first_token_seconds",
    "corefw:inter_token_latency_seconds",
    "corefw:request_time_per_output_token_seconds",
    "corefw:e2e_request_latency_seconds",
    "corefw:request_queue_time_seconds",
    "corefw:request_prefill_time_seconds",
    "corefw:request_decode_time_seconds",
    "corefw:request_inference_time_seconds",
    "corefw:request_prompt_tokens",
    "corefw:request_prefill_kv_computed_tokens",
    "corefw:request_generation_tokens",
    "corefw:request_max_num_generation_tokens",
    "corefw:request_params_n",
    "corefw:request_params_max_tokens",
    "corefw:info",
    "corefw:cache_config_info",
}

# The samples that the dashboards published with vLLM ask for (grafana.json, performance_statistics.json and
# query_statistics.json among its examples), each with the labels that a query filters or groups by.
DASHBOARDS = {
    "vllm:e2e_request_latency_seconds_bucket": {"model_name", "le"},
    "vllm:e2e_request_latency_seconds_sum": {"model_name"},
    "vllm:e2e_request_latency_seconds_count": {"model_name"},
    "vllm:prompt_tokens_total": {"model_name"},
    "vllm:generation_tokens_total": {"model_name"},
    "vllm:inter_token_latency_seconds_bucket": {"model_name", "le"},
    "vllm:inter_token_latency_seconds_sum": {"model_name"},
    "vllm:inter_token_latency_seconds_count": {"model_name"},
    "vllm:num_requests_running": {"model_name"},
    "vllm:num_requests_waiting": {"model_name"},
    "vllm:time_to_first_token_seconds_bucket": {"model_name", "le"},
    "vllm:time_to_first_token_seconds_sum": {"model_name"},
    "vllm:time_to_first_token_seconds_count": {"model_name"},
    "vllm:kv_cache_usage_perc": {"model_name"},
    "vllm:request_prompt_tokens_bucket": {"model_name", "le"},
    "vllm:request_generation_tokens_bucket": {"model_name", "le"},
    "vllm:request_success_total": {"model_name", "finished_reason"},
    "vllm:request_queue_time_seconds_sum": {"model_name"},
    "vllm:request_prefill_time_seconds_sum": {"model_name"},
    "vllm:request_decode_time_seconds_sum": {"model_name"},
    "vllm:request_max_num_generation_tokens_sum": {"model_name"},
    # Of older editions of these dashboards.
    "vllm:gpu_cache_usage_perc": {"model_name"},
    "vllm:time_per_output_token_seconds_bucket": {"model_name", "le"},
    "vllm:time_per_output_token_seconds_sum": {"model_name"},
    "vllm:time_per_output_token_seconds_count": {"model_name"},
}
# What its documentation of metrics lists besides, with types.
VLLM_TYPES = {
    "vllm:num_preemptions": "counter",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:request_success": "counter",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:cache_config_info": "gauge",
    "vllm:iteration_tokens_total": "histogram",
    "vllm:request_params_n": "histogram",
    "vllm:request_params_max_tokens": "histogram",
    "vllm:request_max_num_generation_tokens": "histogram",
    "vllm:request_prefill_kv_computed_tokens": "histogram",
    "vllm:request_time_per_output_token_seconds": "histogram",
    "vllm:request_inference_time_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
}


def families(server: Running) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(server.get("/metrics").text)}


def count(server: Running, name: str) -> float:
    return server.metric(f"corefw:{name}_count")


def total(server: Running, name: str) -> float:
    return server.metric(f"corefw:{name}_sum")


def ends(server: Running) -> dict[str, int]:
    values = {r.value: int(server.metric(f'corefw:requests_total{{finish_reason="{r}"')) for r in FinishReason}
    return {reason: value for reason, value in values.items() if value}


def test_every_figure_is_there_and_parses() -> None:
    with serving(scripted()) as server:
        answer = server.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert set(found) >= NAMES
    samples = [sample for name in NAMES for sample in found[name].samples]
    assert {sample.labels["model_name"] for sample in samples} == {"demo"}


def test_a_client_that_wants_openmetrics_gets_it() -> None:
    with serving(scripted()) as server:
        server.post("completions", {"prompt": "a"})
        answer = server.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert answer.headers["vary"] == "accept"
    assert {family.name for family in parse_openmetrics(answer.text)} >= NAMES
    assert answer.text.endswith("# EOF\n")


def test_dashboards_made_for_vllm_find_all_that_they_ask_for() -> None:
    with serving(scripted(), metrics_names="vllm") as server:
        server.post("completions", {"prompt": "a"})
        found = families(server)
    samples: dict[str, list[set[str]]] = {}
    for family in found.values():
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(set(sample.labels))
    missing = {name: labels for name, labels in DASHBOARDS.items() if not samples.get(name)}
    assert missing == {}
    assert [name for name, wanted in DASHBOARDS.items() if not all(have >= wanted for have in samples[name])] == []
    assert {name: found[name].type for name in VLLM_TYPES} == VLLM_TYPES
    vllm = [sample for name, family in found.items() if name.startswith("vllm:") for sample in family.samples]
    assert {(sample.labels["model_name"], sample.labels["engine"]) for sample in vllm} == {("demo", "0")}
    own = {
        "corefw:engine_ready",
        "corefw:engine_restarts",
        "corefw:info",
        "corefw:plugin_info",
        "corefw:plugin_contributions_quarantined",
    }
    assert {name for name in found if name.startswith("corefw:")} <= own
    reasons = {sample.labels["finished_reason"] for sample in found["vllm:request_success"].samples}
    assert reasons == {"stop", "length", "abort", "error"}


def test_gauges_follow_the_engine_and_latencies_the_requests() -> None:
    engine = scripted("abc", delay_s=0.05)
    with serving(engine) as server:
        assert server.post("completions", {"prompt": "a", "n": 2}).status_code == 200
        wait_until(lambda: not engine.running)
        assert server.metric("corefw:num_requests_running") == 0
        assert server.metric("corefw:generation_tokens_total") == 8
        assert count(server, "time_to_first_token_seconds") == 2
        first_s = total(server, "time_to_first_token_seconds") / 2
        whole_s = total(server, "e2e_request_latency_seconds") / 2
        assert 0.04 < first_s < whole_s
        assert count(server, "inter_token_latency_seconds") == 6
        assert 0.04 < total(server, "inter_token_latency_seconds") / 6 < 0.5
        assert total(server, "request_decode_time_seconds") == pytest.approx(
            total(server, "inter_token_latency_seconds")
        )


def test_sequences_and_prompts_are_counted_once_each() -> None:
    with serving(scripted("abc")) as server:
        server.post("completions", {"prompt": ["a", "bb", "ccc"], "n": 2, "max_tokens": 3})
        assert ends(server) == {"length": 6}
        for name in ("e2e_request_latency_seconds", "request_prompt_tokens", "request_generation_tokens"):
            assert count(server, name) == 6
        assert total(server, "request_prompt_tokens") == 12
        assert total(server, "request_generation_tokens") == 18
        for name in ("request_params_n", "request_params_max_tokens", "request_max_num_generation_tokens"):
            assert count(server, name) == 3
        assert (total(server, "request_params_n"), total(server, "request_params_max_tokens")) == (6, 9)


@pytest.mark.parametrize(("body", "num_sequences"), [({"prompt": "a"}, 1), ({"prompt": ["a", "b"], "n": 2}, 4)])
@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_is_counted_once_a_sequence(body: dict[str, Any], num_sequences: int, stream: bool) -> None:
    with serving(scripted("abcdef", failure=ScriptedFailure(after_tokens=2))) as server:
        server.post("completions", {**body, "stream": stream})
        wait_until(lambda: sum(ends(server).values()) == num_sequences)
        assert ends(server) == {"error": num_sequences}


def test_a_dead_engine_is_an_error_of_its_requests_and_its_counters_stay() -> None:
    with serving(scripted("abcdef", failure=ScriptedFailure(after_tokens=2, dead=True))) as server:
        assert server.post("completions", {"prompt": "a"}).status_code == 503
        assert ends(server) == {"error": 1}
        assert server.metric("corefw:generation_tokens_total") == 2


def test_wrong_requests_never_ran_and_are_no_sequences() -> None:
    with serving(scripted()) as server:
        for body in (
            {"prompt": ""},
            {"prompt": ["a", "b" * 3000]},
            {"prompt": "a", "max_tokens": 10**6},
            {"promt": "a"},
        ):
            assert server.post("completions", body).status_code == 400
        assert ends(server) == {}
        assert count(server, "e2e_request_latency_seconds") == 0
        assert _http(server, "/v1/completions") == {"400": 4}


def test_updates_that_are_held_back_still_count_token_by_token() -> None:
    engine = scripted("abcdefgh", delay_s=0.01)
    with serving(engine) as server:
        slow = TextEngine(engine, server.state.renderer, stream_interval=100)
        object.__setattr__(server.state, "text", slow)
        server.post("completions", {"prompt": "a", "stream": True})
        assert count(server, "inter_token_latency_seconds") == 8
        assert total(server, "inter_token_latency_seconds") >= 0.07


def test_a_text_that_ends_with_a_stop_string_counts_as_one() -> None:
    with serving(scripted("abcdef")) as server:
        server.post("completions", {"prompt": "a", "stop": "c"})
        assert ends(server) == {"stop": 1}
        assert total(server, "request_generation_tokens") == 3


def _http(server: Running, route: str) -> dict[str, int]:
    samples = families(server)["corefw:http_requests"].samples
    return {sample.labels["status"]: int(sample.value) for sample in samples if sample.labels["route"] == route}


def test_http_requests_are_counted_by_route_and_status_and_no_client_makes_a_label() -> None:
    with serving(scripted(), api_key=("secret",), root_path="/api") as server:
        key = {"Authorization": "Bearer secret"}
        server.get("/v1/models")
        server.get("/v1/models/demo", headers=key)
        server.get("/api/v1/models/other", headers=key)
        for index in range(5):
            server.get(f"/made-up-{index}", headers=key)
        httpx.request("PUT", f"{server.url}/v1/models", headers=key)
        text = server.get("/metrics", headers=key).text
    lines = sorted(line for line in text.splitlines() if line.startswith("corefw:http_requests_total{"))
    assert lines == [
        'corefw:http_requests_total{method="GET",route="/v1/models/{model:path}",status="200"} 1.0',
        'corefw:http_requests_total{method="GET",route="/v1/models/{model:path}",status="404"} 1.0',
        'corefw:http_requests_total{method="GET",route="other",status="401"} 1.0',
        'corefw:http_requests_total{method="GET",route="other",status="404"} 5.0',
        'corefw:http_requests_total{method="PUT",route="/v1/models",status="405"} 1.0',
    ]


def test_a_client_that_went_first_is_counted_as_that() -> None:
    engine = scripted("x" * 100, delay_s=0.05)
    with serving(engine) as server:
        connection = send(server, {"prompt": "a", "max_tokens": 100})
        wait_until(lambda: bool(engine.running))
        connection.close()
        wait_until(lambda: _http(server, "/v1/completions") == {"499": 1})
        assert ends(server) == {"abort": 1}


def test_info_says_what_the_server_is() -> None:
    with serving(scripted()) as server:
        found = families(server)
    (info,) = found["corefw:info"].samples
    assert info.value == 1
    assert {name: info.labels[name] for name in ("model", "dtype", "platform", "architecture")} == {
        "model": "test:demo",
        "dtype": "float32",
        "platform": "cpu",
        "architecture": "TestForCausalLM",
    }
    (cache,) = found["corefw:cache_config_info"].samples
    assert (cache.labels["block_size"], cache.labels["num_gpu_blocks"]) == ("16", "129")
    assert found["process_resident_memory_bytes"].samples[0].value > 0


def test_two_servers_in_one_process_share_no_figures() -> None:
    with serving(scripted()) as one, serving(scripted()) as other:
        one.post("completions", {"prompt": "a"})
        assert count(one, "time_to_first_token_seconds") == 1
        assert count(other, "time_to_first_token_seconds") == 0
