"""Clients that go: whatever state their request is in, the engine hears of it within a second."""

from __future__ import annotations

import json
import socket
import time

import pytest

from corefw.messages.outputs import FinishReason
from tests.server.serving import Running, scripted, serving, wait_until

LIMIT_S = 1.0


def connect(server: Running, path: str, body: dict[str, object]) -> socket.socket:
    content = json.dumps(body).encode()
    head = f"POST /v1/{path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=5)
    connection.sendall(head.encode() + b"\r\n\r\n" + content)
    return connection


BODIES = [
    ("completions", {"prompt": "a", "max_tokens": 1000}),
    ("completions", {"prompt": ["a", "b"], "max_tokens": 1000, "n": 2}),
    ("chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "n": 3}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), BODIES)
def test_a_running_request_is_aborted_when_its_client_goes(path: str, body: dict[str, object], stream: bool) -> None:
    engine = scripted("x" * 1000, delay_s=0.01)
    with serving(engine) as server:
        connection = connect(server, path, {**body, "stream": stream})
        wait_until(lambda: engine.num_generated_tokens > 8)
        connection.close()
        wait_until(lambda: not engine.running, LIMIT_S)
        wait_until(lambda: len(server.state.in_flight) == 0)
        assert len(engine.aborted) == len(engine.requests)
        assert server.metric('corefw:requests_total{finish_reason="abort"') == len(engine.requests)
        assert server.metric("corefw:num_requests_running") == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_without_its_first_token_is_aborted_when_its_client_goes(stream: bool) -> None:
    engine = scripted("x", delay_s=30)
    with serving(engine) as server:
        connection = connect(server, "completions", {"prompt": "a", "stream": stream})
        wait_until(lambda: bool(engine.running))
        connection.close()
        wait_until(lambda: not engine.running, LIMIT_S)
        assert server.metric('corefw:requests_total{finish_reason="abort"') == 1


def test_a_client_that_stops_reading_and_goes_is_noticed() -> None:
    engine = scripted("x" * 3000, tokens_per_output=8, max_model_len=4096)
    with serving(engine) as server:
        body = {"prompt": ["a"] * 40, "max_tokens": 3000, "stream": True, "logprobs": 20, "request_id": "r" * 100}
        connection = connect(server, "completions", body)
        wait_until(lambda: len(engine.running) == 40)
        time.sleep(0.3)
        connection.close()
        wait_until(lambda: not engine.running, LIMIT_S + 1)


def test_a_client_that_goes_in_the_middle_of_its_body_leaves_nothing() -> None:
    engine = scripted()
    with serving(engine) as server:
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=5)
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        connection.sendall(b'Content-Length: 100\r\n\r\n{"prompt"')
        time.sleep(0.1)
        connection.close()
        assert server.get("/health").status_code == 200
        assert engine.requests == []


def test_one_client_going_leaves_another_with_the_same_ids_alone() -> None:
    engine = scripted("x" * 40, delay_s=0.02)
    with serving(engine) as server:
        leaving = connect(server, "completions", {"prompt": "a", "max_tokens": 40, "request_id": "same"})
        staying = connect(server, "completions", {"prompt": "b", "max_tokens": 40, "request_id": "same"})
        wait_until(lambda: len(engine.running) == 2)
        leaving.close()
        received = b""
        while b"usage" not in received:
            received += staying.recv(65536)
        staying.close()
        assert b'"finish_reason":"length"' in received
        assert len(engine.aborted) == 1


def test_requests_are_counted_by_their_end() -> None:
    with serving(scripted("abc")) as server:
        server.post("completions", {"prompt": "a"})
        server.post("completions", {"prompt": "a", "max_tokens": 1, "n": 2})
        server.post("completions", {"prompt": ""})
        counts = {r: server.metric(f'corefw:requests_total{{finish_reason="{r}"') for r in FinishReason}
    assert counts == {"stop": 1, "length": 2, "abort": 0, "error": 0}
