"""Clients that send too slowly."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest

from corefw.server.http_protocol import Deadlines
from tests.server.serving import Running, scripted, serving

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
BODY = b'{"prompt": "a", "max_tokens": 30}'


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    deadlines = Deadlines(head_s=0.6, body_idle_s=0.6, body_s=1.5)
    with serving(scripted("x" * 30, delay_s=0.05), deadlines=deadlines) as running:
        yield running


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def rest(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def error_code(answer: bytes) -> str:
    assert answer.startswith(b"HTTP/1.1 408 ")
    code: str = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"]
    return code


def test_the_defaults_are_half_a_minute_and_two_minutes() -> None:
    assert Deadlines() == Deadlines(head_s=30, body_idle_s=30, body_s=120)


def test_a_connection_without_a_word_is_closed(server: Running) -> None:
    with connect(server) as connection:
        assert rest(connection) == b""


def test_a_head_that_trickles_is_refused(server: Running) -> None:
    with connect(server) as connection:
        for byte in (b"GET ", b"/health ", b"HTTP/1.1\r\n"):
            connection.sendall(byte)
            time.sleep(0.1)
        assert error_code(rest(connection)) == "request_timeout"


def test_the_head_after_an_answer_has_its_own_deadline(server: Running) -> None:
    with connect(server) as connection:
        for _ in range(2):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            time.sleep(1.0)  # idle between requests is not late
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /hea")
        assert error_code(rest(connection)) == "request_timeout"


def test_a_body_that_stops_is_refused(server: Running) -> None:
    with connect(server) as connection:
        connection.sendall(HEAD % len(BODY) + BODY[:5])
        assert error_code(rest(connection)) == "request_timeout"
    assert server.engine.requests == []


def test_a_body_that_trickles_is_refused_in_the_end(server: Running) -> None:
    started_s = time.monotonic()
    with connect(server) as connection:
        connection.sendall(HEAD % 1000)
        answer = b""
        connection.settimeout(0.2)
        while not answer and time.monotonic() < started_s + 8:
            connection.sendall(b" ")
            try:
                answer = connection.recv(65536)
            except TimeoutError:
                continue
    assert error_code(answer) == "request_timeout"
    assert time.monotonic() - started_s > 1.4


def test_a_body_that_never_comes_after_an_early_answer_ends_the_connection(server: Running) -> None:
    with connect(server) as connection:
        connection.sendall((HEAD % 1000).replace(b"/v1/completions", b"/v1/nothing"))
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 404")
    assert answer.count(b"HTTP/1.1") == 1


def test_a_long_answer_is_not_disturbed_by_a_late_request_behind_it(server: Running) -> None:
    with connect(server) as connection:
        connection.sendall(HEAD % len(BODY) + BODY + b"GET /hea")
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"completion_tokens":30' in answer
    assert answer.count(b"HTTP/1.1") == 1
