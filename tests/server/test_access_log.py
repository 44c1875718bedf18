"""The access log: one line a request, with what an operator needs and nothing that a client would keep to itself."""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import Iterator

import httpx
import pytest

from corefw.observability.logging import _JsonFormatter
from corefw.server.http_protocol import Deadlines
from tests.server.serving import Running, scripted, serving, wait_until

LOGGER = "corefw.server.access_log"
SECRET = "secret-key"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(scripted("x" * 1000, delay_s=0.01), access_log=True, api_key=(SECRET,)) as running:
        yield running


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def lines() -> Iterator[list[str]]:
    logger, kept = logging.getLogger(LOGGER), Kept()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(kept)
    yield kept.lines
    logger.removeHandler(kept)
    logger.setLevel(level)


def only(lines: list[str]) -> str:
    wait_until(lambda: bool(lines))
    (line,) = lines
    return line


def test_a_line_has_client_method_path_status_time_and_id(server: Running, lines: list[str]) -> None:
    server.get("/health", headers={"X-Request-Id": "mine"})
    assert re.fullmatch(r"127\.0\.0\.1:\d+ GET /health 200 \d+\.\d ms mine", only(lines))


def test_neither_key_nor_query_nor_body_is_logged(server: Running, lines: list[str]) -> None:
    headers = {"Authorization": f"Bearer {SECRET}"}
    url = f"{server.url}/v1/completions?token=hidden"
    httpx.post(url, json={"prompt": "private words", "max_tokens": 1}, headers=headers)
    line = only(lines)
    assert "POST /v1/completions 200 " in line
    assert not [word for word in (SECRET, "hidden", "token", "private", "?") if word in line]


@pytest.mark.parametrize(("path", "status"), [("/v1/models", 401), ("/nothing", 401)])
def test_refusals_are_logged(server: Running, lines: list[str], path: str, status: int) -> None:
    server.get(path)
    assert f"GET {path} {status} " in only(lines)


def test_no_path_makes_a_second_line_or_a_long_one(server: Running, lines: list[str]) -> None:
    server.get("/%0a1.2.3.4:5%20GET%20/forged%20200%1b[31m%e2%80%a8" + "x" * 5000)
    line = only(lines)
    assert line.isascii()
    assert line.isprintable()
    assert "/%0A1.2.3.4%3A5%20GET%20/forged%20200%1B%5B31m%E2%80%A8" in line
    assert len(line) < 900


def test_a_stream_that_its_client_left_is_told_as_incomplete(server: Running, lines: list[str]) -> None:
    body = {"prompt": "a", "max_tokens": 900, "stream": True}
    headers = {"Authorization": f"Bearer {SECRET}"}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, headers=headers) as answer:
        assert answer.status_code == 200
    assert re.search(r"POST /v1/completions 200 \d+\.\d ms [0-9a-f]{32} incomplete$", only(lines))


def test_a_client_that_left_before_its_answer_has_a_line(server: Running, lines: list[str]) -> None:
    body = b'{"prompt": "a", "max_tokens": 900}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head % len(body) + b"Authorization: Bearer " + SECRET.encode() + b"\r\n\r\n" + body)
        wait_until(lambda: bool(server.engine.running))
    assert "POST /v1/completions 499 " in only(lines)


def test_without_being_asked_for_there_are_no_lines(lines: list[str]) -> None:
    with serving(scripted()) as server:
        server.get("/health")
        server.get("/nothing")
    assert not lines


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [(b"\x16\x03\x01\r\n", 400, "invalid_http"), (b"GET /" + b"a" * 70_000, 431, "head_too_large")],
)
def test_what_is_refused_before_it_is_a_request_has_a_line_without_a_path(
    server: Running, lines: list[str], sent: bytes, status: int, code: str
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(sent)
        assert connection.recv(100).startswith(b"HTTP/1.1 %d " % status)
    assert re.fullmatch(rf"127\.0\.0\.1:\d+ - - {status} {code}", only(lines))


def test_a_body_that_does_not_come_is_logged_and_counted_with_the_status_that_the_client_got(lines: list[str]) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    with serving(scripted(), access_log=True, deadlines=Deadlines(body_idle_s=0.2)) as running:
        with socket.create_connection(("127.0.0.1", running.port), timeout=10) as connection:
            connection.sendall(head)
            assert connection.recv(100).startswith(b"HTTP/1.1 408 ")
        assert " POST /v1/completions 408 " in only(lines)
        assert running.metric('corefw:http_requests_total{method="POST",route="/v1/completions",status="408"}') == 1


def test_a_refusal_does_not_carry_the_id_of_the_request_before_it(server: Running) -> None:
    kept: list[str] = []

    class AsJson(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(_JsonFormatter("front-end").format(record))

    logger, handler = logging.getLogger(LOGGER), AsJson()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nX-Request-Id: first\r\n\r\n")
            connection.recv(1000)
            wait_until(lambda: len(kept) == 1)
            connection.sendall(b"\x00\r\n\r\n")
        wait_until(lambda: len(kept) == 2)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert json.loads(kept[0])["request_id"] == "first"
    assert "request_id" not in json.loads(kept[1])
