"""A request that takes too long is ended with an error, and with it what the engine does for it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.serving import Running, events, scripted, serving, wait_until

LONG: list[tuple[str, dict[str, Any]]] = [
    ("completions", {"prompt": ["a", "b"], "max_tokens": 900}),
    ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 900, "n": 2}),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(scripted("x" * 1000, delay_s=0.01), request_timeout=0.4) as running:
        yield running


@pytest.mark.parametrize(("path", "body"), LONG)
def test_an_answer_that_comes_whole_becomes_an_error(server: Running, path: str, body: dict[str, Any]) -> None:
    begun = time.monotonic()
    answer = server.post(path, body)
    assert time.monotonic() - begun < 3
    assert answer.status_code == 504
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "request_timeout")
    assert "0.4 s (--request-timeout)" in error["message"]
    wait_until(lambda: not server.engine.running)
    assert len(server.engine.aborted) >= 2


@pytest.mark.parametrize(("path", "body"), LONG)
def test_a_stream_ends_with_the_error(server: Running, path: str, body: dict[str, Any]) -> None:
    answer = server.post(path, {**body, "stream": True})
    assert answer.status_code == 200
    *chunks, last = events(answer)
    assert len(chunks) > 5
    assert json.loads(last)["error"]["code"] == "request_timeout"
    wait_until(lambda: not server.engine.running)


def test_a_request_in_time_is_left_alone(server: Running) -> None:
    for stream in (False, True):
        assert server.post("completions", {"prompt": "a", "max_tokens": 5, "stream": stream}).status_code == 200
    time.sleep(0.5)
    assert server.get("/health").status_code == 200


def test_a_connection_can_be_used_again_after_a_timeout(server: Running) -> None:
    with httpx.Client(base_url=server.url, timeout=10) as client:
        assert client.post("/v1/completions", json=LONG[0][1]).status_code == 504
        assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200


def test_a_request_without_its_first_token_ends_in_time() -> None:
    with serving(scripted(delay_s=30), request_timeout=0.3) as server:
        for stream in (False, True):
            assert server.post("completions", {"prompt": "a", "stream": stream}).status_code == 504
        wait_until(lambda: not server.engine.running)


def test_without_a_limit_a_request_takes_its_time() -> None:
    with serving(scripted("x" * 20, delay_s=0.03)) as server:
        assert server.post("completions", {"prompt": "a", "max_tokens": 30}).json()["usage"]["completion_tokens"] == 21
