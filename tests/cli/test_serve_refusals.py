"""What is wrong with a server's settings is told before anybody looks for the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from corefw.testing.tiny_models import write_tiny_llama
from tests.cli.commands import corefw

COLLECTOR = ("--otlp-traces-endpoint", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--root-path", "/v1"), "--root-path /v1 is the beginning of a route of this server; take another prefix"),
        (("--root-path", "v1/"), "--root-path 'v1/' is no prefix of paths"),
        (("--ssl-certfile", "/no/such/file"), "--ssl-certfile '/no/such/file' can't be read: No such file"),
        (("--uds", "/no/such/directory/x"), "--uds '/no/such/directory/x' can't be made: No such file"),
        (("--host", "no.such.host.invalid"), "--host 'no.such.host.invalid' is no address of this machine"),
        (("--allowed-origins", "page.example"), "--allowed-origins 'page.example' is no origin"),
        (("--api-key", "schl\u00fcssel"), "--api-key"),
        (("--log-format", "xml"), "--log-format"),
        (("--metrics-names", "mine"), "--metrics-names"),
        (("--request-timeout", "0"), "--request-timeout must be above 0"),
        (("--otlp-traces-endpoint", "localhost:4317"), "--otlp-traces-endpoint 'localhost:4317' is no URL"),
        (("--plugins", "+tokenize,+nothing_like_it"), "nothing_like_it"),
    ],
)
def test_a_wrong_setting_is_told_though_there_is_no_model(flags: tuple[str, ...], message: str) -> None:
    address = () if "--uds" in flags else ("--port", "0")
    ended = corefw("serve", "/no/such/model", *address, *flags)
    assert ended.returncode in (1, 2)
    assert message in ended.stderr.splitlines()[-1]
    assert "/no/such/model" not in ended.stderr


def test_a_wrong_variable_of_opentelemetry_is_told_though_there_is_no_model() -> None:
    ended = corefw("serve", "/no/such/model", "--port", "0", *COLLECTOR, env={"OTEL_BSP_MAX_QUEUE_SIZE": "1"})
    assert "OpenTelemetry refuses one of its variables" in ended.stderr.splitlines()[-1]
    assert "/no/such/model" not in ended.stderr


def test_unusable_sampling_defaults_are_told_before_the_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"temperature": "hot"}')
    model = write_tiny_llama(tmp_path / "tiny")
    ended = corefw("serve", str(model), "--port", "0", "--generation-config", str(tmp_path), "--log-level", "DEBUG")
    assert "temperature must be a number" in ended.stderr.splitlines()[-1]
    assert " core " not in ended.stderr, "the core's process has nothing to tell, since nobody configured it"
