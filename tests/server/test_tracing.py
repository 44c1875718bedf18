"""Spans, from requests over a real socket to a collector on another."""

from __future__ import annotations

import logging
import socket
import time

import httpx
import pytest

from corefw.testing.scripted_engine import ScriptedFailure
from tests.server.otlp_collector import Collector, Span, collecting
from tests.server.raw_client import send
from tests.server.serving import scripted, serving, wait_until

OK, ERROR = 0, 2  # a server's span without a word about its status, and one that failed
SERVER_KIND = 2
TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)


def only_span(collector: Collector) -> Span:
    (span,) = collector.wait(1)
    return span


def test_a_request_is_one_span_with_what_was_asked_and_what_came() -> None:
    with (
        collecting() as collector,
        serving(scripted("abc", delay_s=0.05), otlp_traces_endpoint=collector.url) as server,
    ):
        before_s = time.time()
        body = {"prompt": "Hello", "temperature": 0.5, "top_p": 0.9, "max_tokens": 9, "request_id": "r1"}
        answer = server.post("completions", body).json()
        after_s = time.time()
        span = only_span(collector)
    assert collector.paths == ["/v1/traces"]
    assert (span.name, span.kind, span.status, span.parent_id) == ("llm_request", SERVER_KIND, OK, "")
    assert before_s - 0.01 <= span.start_s < span.end_s <= after_s + 0.01
    assert span.end_s - span.start_s >= 0.2
    attributes = span.attributes
    assert attributes["gen_ai.request.id"] == answer["id"] == "cmpl-r1"
    assert attributes["gen_ai.request.model"] == attributes["gen_ai.response.model"] == "demo"
    assert attributes["gen_ai.request.temperature"] == 0.5
    assert attributes["gen_ai.request.top_p"] == 0.9
    assert attributes["gen_ai.request.max_tokens"] == 9
    assert attributes["gen_ai.request.n"] == 1
    assert attributes["gen_ai.usage.prompt_tokens"] == answer["usage"]["prompt_tokens"] == 5
    assert attributes["gen_ai.usage.completion_tokens"] == answer["usage"]["completion_tokens"] == 4
    assert attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert 0.04 < attributes["gen_ai.latency.time_to_first_token"] < attributes["gen_ai.latency.e2e"]
    assert attributes["gen_ai.latency.e2e"] == pytest.approx(span.end_s - span.start_s, abs=0.02)
    assert span.resource["service.name"] == "corefw"


def test_several_prompts_and_outputs_are_one_span() -> None:
    with collecting() as collector, serving(scripted("ab"), otlp_traces_endpoint=collector.url) as server:
        server.post("completions", {"prompt": ["a", "bcd"], "n": 2})
        attributes = only_span(collector).attributes
    assert attributes["gen_ai.usage.num_sequences"] == 4
    assert attributes["gen_ai.usage.prompt_tokens"] == 4
    assert attributes["gen_ai.usage.completion_tokens"] == 12


@pytest.mark.parametrize("stream", [False, True])
def test_the_traceparent_header_names_the_parent(stream: bool) -> None:
    headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": stream}
    with collecting() as collector, serving(scripted(), otlp_traces_endpoint=collector.url) as server:
        assert server.post("chat/completions", body, headers=headers).status_code == 200
        span = only_span(collector)
    assert (span.trace_id, span.parent_id) == (TRACE_ID, PARENT_ID)


def test_a_parent_that_is_not_sampled_is_not_followed_and_a_broken_one_begins_a_trace() -> None:
    with collecting() as collector, serving(scripted(), otlp_traces_endpoint=collector.url) as server:
        for value in (f"00-{TRACE_ID}-{PARENT_ID}-00", "nonsense", "00-00-00-01"):
            server.post("completions", {"prompt": "a"}, headers={"traceparent": value})
        collector.wait(2)
    assert [span.parent_id for span in collector.spans] == ["", ""]
    assert TRACE_ID not in {span.trace_id for span in collector.spans}


def test_a_failed_request_says_how() -> None:
    engine = scripted("abcdef", failure=ScriptedFailure(after_tokens=2, message="no memory left"))
    with collecting() as collector, serving(engine, otlp_traces_endpoint=collector.url) as server:
        assert server.post("completions", {"prompt": "a"}).status_code == 500
        span = only_span(collector)
    assert (span.status, span.message) == (ERROR, "no memory left")
    assert span.attributes["error.type"] == "EngineError"
    assert span.attributes["gen_ai.usage.completion_tokens"] == 2
    assert span.attributes["gen_ai.response.finish_reasons"] == ["error"]


def test_an_aborted_request_is_told_as_one() -> None:
    engine = scripted("x" * 500, delay_s=0.01)
    with collecting() as collector, serving(engine, otlp_traces_endpoint=collector.url) as server:
        connection = send(server, {"prompt": "a", "max_tokens": 500})
        wait_until(lambda: engine.num_generated_tokens > 3)
        connection.close()
        span = only_span(collector)
    assert (span.status, span.attributes["error.type"]) == (ERROR, "abort")
    assert span.attributes["gen_ai.response.finish_reasons"] == ["abort"]
    assert span.attributes["gen_ai.usage.completion_tokens"] > 3


def test_a_request_that_was_wrong_has_no_span() -> None:
    with collecting() as collector, serving(scripted(), otlp_traces_endpoint=collector.url) as server:
        assert server.post("completions", {"prompt": "a" * 3000}).status_code == 400
        server.post("completions", {"prompt": "a"})
        assert only_span(collector).attributes["gen_ai.usage.prompt_tokens"] == 1


def test_the_last_spans_go_out_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    with collecting() as collector:
        with serving(scripted(), otlp_traces_endpoint=collector.url) as server:
            server.post("completions", {"prompt": "a"})
            assert collector.spans == []
        assert len(collector.spans) == 1


def test_a_collector_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    with collecting(delay_s=6.0) as collector:
        with serving(scripted(), otlp_traces_endpoint=collector.url) as server:
            server.post("completions", {"prompt": "a"})
            begun_s = time.monotonic()
        assert time.monotonic() - begun_s < 5.0


def test_a_dead_collector_costs_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with caplog.at_level(logging.INFO), serving(scripted(), otlp_traces_endpoint=f"http://127.0.0.1:{port}") as server:
        took_s = []
        for _ in range(40):
            begun_s = time.monotonic()
            assert server.post("completions", {"prompt": "a"}).status_code == 200
            took_s.append(time.monotonic() - begun_s)
            time.sleep(0.05)
        wait_until(lambda: any("spans don't reach" in record.getMessage() for record in caplog.records))
        assert server.get("/health").status_code == 200
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    lost = [warning for warning in warnings if "spans don't reach" in warning]
    assert lost == [f"spans don't reach http://127.0.0.1:{port}/v1/traces; they are lost until it answers"]
    assert not [warning for warning in warnings if "opentelemetry" in warning.lower()]
    assert "Traceback" not in capfd.readouterr().err
    assert sorted(took_s)[len(took_s) // 2] < 0.5


def test_a_collector_that_is_back_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="corefw")
    with collecting(status=400) as collector, serving(scripted(), otlp_traces_endpoint=collector.url) as server:
        server.post("completions", {"prompt": "a"})
        wait_until(lambda: "spans don't reach" in caplog.text)
        collector.status = 200
        server.post("completions", {"prompt": "a"})
        collector.wait(1)
        wait_until(lambda: "spans reach" in caplog.text)
    assert "1 were lost" in caplog.text


def test_without_the_flag_there_is_no_span_and_no_import() -> None:
    with collecting() as collector, serving(scripted()) as server:
        headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
        assert httpx.post(f"{server.url}/v1/completions", json={"prompt": "a"}, headers=headers).status_code == 200
        assert server.state.tracing is None
    assert collector.spans == []
