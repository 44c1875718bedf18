"""Where spans go, and what happens without the packages that send them."""

from __future__ import annotations

import logging
import subprocess
import sys
import time

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from corefw.config.engine_config import ServerConfig
from corefw.errors import ConfigError
from corefw.messages.sampling import SamplingParams
from corefw.observability.tracing import Tracing, traces_url

_WITHOUT_PACKAGES = """
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Gone())
from corefw.cli.main import main
sys.exit(main(["serve", "--port", "0", "--otlp-traces-endpoint", "http://localhost:4318"]))
"""
_SERVER_IMPORTS = """
import sys
import corefw.cli.serve, corefw.server.run, corefw.server.observation
sys.exit(any(name.split(".")[0] in ("opentelemetry", "google") for name in sys.modules))
"""


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://collector/v1/traces", "https://collector/v1/traces"),
        ("http://[::1]:4318/otlp?key=a", "http://[::1]:4318/otlp?key=a"),
    ],
)
def test_an_endpoint_without_a_path_gets_the_one_for_spans(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url
    ServerConfig(otlp_traces_endpoint=endpoint)


@pytest.mark.parametrize(
    "endpoint",
    [
        "localhost:4317",
        "grpc://localhost:4317",
        "http://",
        "http://a:99999",
        "http://a:b",
        "http://a b",
        "ftp://a",
        "/a",
    ],
)
def test_what_is_no_url_of_a_collector_stops_the_start(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"--otlp-traces-endpoint .*http://localhost:4318/v1/traces"):
        ServerConfig(otlp_traces_endpoint=endpoint)


def test_without_its_packages_the_start_stops_at_once_and_says_what_to_install() -> None:
    result = subprocess.run([sys.executable, "-c", _WITHOUT_PACKAGES], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "pip install 'corefw[otel]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_server_imports_no_tracing_that_nobody_asked_for() -> None:
    subprocess.run([sys.executable, "-c", _SERVER_IMPORTS], check=True, timeout=60)


def warnings_of_ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith("corefw.")
    ]


@pytest.mark.parametrize(("name", "value"), [("OTEL_BSP_MAX_QUEUE_SIZE", "1"), ("OTEL_SPAN_EVENT_COUNT_LIMIT", "-1")])
def test_a_variable_that_opentelemetry_refuses_is_an_error_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"--otlp-traces-endpoint: .* \(OTEL_…\): \S"):
        Tracing("http://127.0.0.1:1")


def test_a_variable_that_opentelemetry_ignores_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "nonsense")
    Tracing("http://127.0.0.1:1").shutdown(2)
    assert warnings_of_ours(caplog) == ["OpenTelemetry: Couldn't recognize sampler nonsense."]


def test_spans_that_the_exporter_fails_on_are_told_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: object) -> None:
        raise OSError("no certificate")

    monkeypatch.setattr(OTLPSpanExporter, "export", failing)
    tracing = Tracing("https://127.0.0.1:1")
    tracing.begin("id", "model", SamplingParams(), {}, time.monotonic()).end([], num_prompt_tokens=1, error=None)
    tracing.shutdown(2)
    assert warnings_of_ours(caplog) == [
        "spans don't reach https://127.0.0.1:1/v1/traces (no certificate); they are lost until it answers"
    ]
