"""Metrics, the engine's line in the log and spans of a real server."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from corefw.testing.server_process import Server, serving
from tests.server.otlp_collector import Collector, collecting
from tests.server.raw_client import send

pytestmark = pytest.mark.model
FLAGS = ("--kv-cache-memory", "256MiB", "--served-model-name", "demo")
ABORTED = 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="demo"}'
ENDLESS = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True}
PAUSE_S = 0.05
# Limits are asserted at three times their stated value.
ENDS_WITHIN_S = 3 * 1.0


@pytest.fixture(scope="module")
def traced() -> Iterator[tuple[Server, Collector]]:
    """A server with few slots, the other names and a collector."""
    env = {"OTEL_BSP_SCHEDULE_DELAY": "100"}
    with collecting() as collector:
        url = collector.url.replace("127.0.0.1", "localhost")  # the log is searched for the server's own address
        flags = ("--max-num-seqs", "4", "--metrics-names", "vllm", "--otlp-traces-endpoint", url)
        with serving(*FLAGS, *flags, env=env) as server:
            yield server, collector


def post(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).json()
    return answer


def wait_for(server: Server, name: str, value: float, limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while server.metric(name) != value:
        assert time.monotonic() < deadline, f"{name} is {server.metric(name)}, not {value}"
        time.sleep(PAUSE_S)


def aborted(server: Server) -> float:
    return server.metric(ABORTED)


def test_gauges_are_zero_soon_after_all_requests_are_aborted(traced: tuple[Server, Collector]) -> None:
    server, _ = traced
    before = aborted(server)
    bodies = [{**ENDLESS, "prompt": f"Story {index}:", "stream": index % 2 == 0} for index in range(20)]
    connections = [send(server, body) for body in bodies]
    wait_for(server, "vllm:num_requests_running", 4)
    wait_for(server, "vllm:num_requests_waiting", 16)
    assert server.metric("vllm:kv_cache_usage_perc") > 0
    for connection in connections:
        connection.close()
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        wait_for(server, name, 0, ENDS_WITHIN_S)
    wait_for(server, ABORTED, before + 20)


def _leave_running(server: Server, body: dict[str, Any]) -> socket.socket:
    connection = send(server, body)
    wait_for(server, "vllm:num_requests_running", 1)
    return connection


def _leave_queued(server: Server, body: dict[str, Any]) -> socket.socket:
    connection = send(server, body)
    wait_for(server, "vllm:num_requests_waiting", 1)
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_stops_the_computing_within_a_second(traced: tuple[Server, Collector], stream: bool) -> None:
    server, _ = traced
    before = aborted(server)
    connection = _leave_running(server, {**ENDLESS, "stream": stream})
    connection.close()
    wait_for(server, "vllm:num_requests_running", 0, ENDS_WITHIN_S)
    wait_for(server, "vllm:kv_cache_usage_perc", 0, ENDS_WITHIN_S)
    wait_for(server, ABORTED, before + 1)
    generated = server.metric("vllm:generation_tokens_total")
    time.sleep(0.3)
    assert server.metric("vllm:generation_tokens_total") == generated


def test_a_client_that_goes_while_its_request_waits_or_is_in_its_prompt_is_aborted(
    traced: tuple[Server, Collector],
) -> None:
    server, _ = traced
    before = aborted(server)
    running = [send(server, ENDLESS) for _ in range(4)]
    wait_for(server, "vllm:num_requests_running", 4)
    queued = _leave_queued(server, {**ENDLESS, "prompt": "Another"})
    queued.close()
    wait_for(server, "vllm:num_requests_waiting", 0)
    for connection in running:
        connection.close()
    wait_for(server, "vllm:num_requests_running", 0)
    prefilling = send(server, {**ENDLESS, "prompt": "One, two, three. " * 400})
    wait_for(server, "vllm:num_requests_running", 1)
    prefilling.close()
    wait_for(server, "vllm:num_requests_running", 0)
    wait_for(server, "vllm:kv_cache_usage_perc", 0)
    wait_for(server, ABORTED, before + 6)


def test_figures_agree_with_the_answers_and_with_each_other(traced: tuple[Server, Collector]) -> None:
    server, _ = traced
    names = [
        *("request_prompt_tokens_sum", "request_generation_tokens_sum", "e2e_request_latency_seconds_count"),
        *("e2e_request_latency_seconds_sum", "inter_token_latency_seconds_count", "inter_token_latency_seconds_sum"),
        *("request_queue_time_seconds_count", "request_prefill_time_seconds_sum", "request_queue_time_seconds_sum"),
        *("request_inference_time_seconds_sum", "request_decode_time_seconds_sum", "time_to_first_token_seconds_sum"),
        *("iteration_tokens_total_sum", "prompt_tokens_total", "generation_tokens_total"),
        *("prefix_cache_queries_total", "prefix_cache_hits_total", "request_prefill_kv_computed_tokens_sum"),
    ]

    def read() -> dict[str, float]:
        return {name: server.metric(f"vllm:{name}") for name in names}

    before = read()
    started_s = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        bodies = [{"prompt": f"The number {i} is", "max_tokens": 12, "ignore_eos": True} for i in range(8)]
        answers = list(pool.map(lambda body: post(server, body), bodies))
    elapsed_s = time.monotonic() - started_s
    name = "e2e_request_latency_seconds_count"
    wait_for(server, f"vllm:{name}", before[name] + 8)
    now = {name: value - before[name] for name, value in read().items()}
    usage = [answer["usage"] for answer in answers]
    assert now["request_prompt_tokens_sum"] == sum(used["prompt_tokens"] for used in usage)
    assert now["request_generation_tokens_sum"] == now["generation_tokens_total"] == 8 * 12
    assert now["prefix_cache_queries_total"] == now["request_prompt_tokens_sum"]
    assert now["request_prefill_kv_computed_tokens_sum"] == now["prompt_tokens_total"]
    assert now["prompt_tokens_total"] == now["request_prompt_tokens_sum"] - now["prefix_cache_hits_total"]
    # The last token of a sequence is never computed itself, its first comes with the prompt.
    assert now["iteration_tokens_total_sum"] == now["prompt_tokens_total"] + 8 * 11
    assert now["e2e_request_latency_seconds_count"] == now["request_queue_time_seconds_count"] == 8
    assert now["inter_token_latency_seconds_count"] == 8 * 11
    assert now["inter_token_latency_seconds_sum"] == pytest.approx(now["request_decode_time_seconds_sum"])
    inference_s = now["request_prefill_time_seconds_sum"] + now["request_decode_time_seconds_sum"]
    assert now["request_inference_time_seconds_sum"] == pytest.approx(inference_s)
    # Eight requests over four slots: half of them had to wait for the others.
    assert now["request_queue_time_seconds_sum"] > 0.5 * now["request_inference_time_seconds_sum"] / 8
    told_s = now["request_queue_time_seconds_sum"] + now["request_prefill_time_seconds_sum"]
    assert told_s <= now["time_to_first_token_seconds_sum"] <= now["e2e_request_latency_seconds_sum"] <= 8 * elapsed_s


def test_a_span_has_the_times_that_the_engine_told(traced: tuple[Server, Collector]) -> None:
    server, collector = traced
    num_before = len(collector.spans)
    begun_s = time.time()
    answer = post(server, {"prompt": "The capital of France is", "max_tokens": 8, "request_id": "paris"})
    ended_s = time.time()
    deadline = time.monotonic() + 10
    while not (found := [s for s in collector.spans[num_before:] if s.attributes["gen_ai.request.id"] == "cmpl-paris"]):
        assert time.monotonic() < deadline
        time.sleep(PAUSE_S)
    (span,) = found
    assert begun_s - 0.01 <= span.start_s < span.end_s <= ended_s + 0.01
    told = {name.removeprefix("gen_ai.latency."): value for name, value in span.attributes.items() if "latency" in name}
    assert set(told) == {
        *("e2e", "time_to_first_token", "time_in_queue"),
        *("time_in_model_prefill", "time_in_model_decode", "time_in_model_inference"),
    }
    assert 0 <= told["time_in_queue"] < told["time_to_first_token"] < told["e2e"] <= ended_s - begun_s
    assert told["time_in_model_prefill"] > 0
    assert told["time_in_model_inference"] == pytest.approx(
        told["time_in_model_prefill"] + told["time_in_model_decode"]
    )
    assert span.attributes["gen_ai.usage.completion_tokens"] == answer["usage"]["completion_tokens"]


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text"])
def test_the_whole_exposition_parses(traced: tuple[Server, Collector], accept: str) -> None:
    server, _ = traced
    answer = httpx.get(f"{server.url}/metrics", headers={"Accept": accept})
    parse = parse_text if accept == "text/plain" else parse_openmetrics
    families = list(parse(answer.text))
    assert all(family.documentation and family.type != "unknown" for family in families)
    assert {family.name for family in families} >= {
        "vllm:iteration_tokens_total",
        "vllm:request_success",
        "corefw:info",
    }


def test_the_log_has_a_line_of_a_busy_engine(
    traced: tuple[Server, Collector],
) -> None:
    server, _ = traced
    lines = _lines(server)
    connection = send(server, {**ENDLESS, "stream": True})
    deadline = time.monotonic() + 25
    while len(_lines(server)) == len(lines):
        assert time.monotonic() < deadline, server.log
        time.sleep(0.2)
    connection.close()
    newest = _lines(server)[-1]
    pattern = (
        r"engine: 1 running, 0 waiting; [0-9.]+ prompt and [0-9.]+ generated tokens/s; "
        r"KV cache [0-9.]+% in use, prefix cache hits ([0-9.]+%|-)"
    )
    assert re.search(pattern, newest), newest


def _lines(server: Server) -> list[str]:
    return [line for line in server.log.splitlines() if "generated tokens/s" in line]
