"""What a client may send: size of bodies and heads, ids."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.server.serving import Running, scripted, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(scripted(), max_body_bytes=4096) as running:
        yield running


def raw(server: Running, *parts: bytes) -> bytes:
    """Send bytes as they are; returns what comes back until the server closes or is silent."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        for part in parts:
            connection.sendall(part)
        received = b""
        connection.settimeout(2)
        try:
            while data := connection.recv(65536):
                received += data
        except TimeoutError:
            pass
    return received


def test_a_body_at_the_limit_passes_and_one_byte_more_does_not(server: Running) -> None:
    def body(num_bytes: int) -> bytes:
        empty = b'{"prompt":"","max_tokens":1}'
        return empty.replace(b'""', b'"' + b"x" * (num_bytes - len(empty)) + b'"')

    headers = {"content-type": "application/json"}
    url = f"{server.url}/v1/completions"
    assert httpx.post(url, content=body(4096), headers=headers).json()["error"]["code"] == "context_length_exceeded"
    assert httpx.post(url, content=body(1024), headers=headers).status_code == 200
    answer = httpx.post(url, content=body(4097), headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert "4096" in answer.json()["error"]["message"]


def test_a_body_without_a_length_is_counted_while_it_comes(server: Running) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 100

    answer = httpx.post(f"{server.url}/v1/completions", content=pieces(), headers={"content-type": "application/json"})
    assert answer.status_code == 413


@pytest.mark.parametrize("length", [b"4097", b"99999999999999999", b"9" * 30])
def test_a_declared_length_beyond_the_limit_is_refused_before_the_body(server: Running, length: bytes) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
    assert raw(server, head + length + b"\r\n\r\n").split(b" ")[1] in (b"413", b"400")


@pytest.mark.parametrize("length", [b"-1", b"abc", b"1, 2", b"0x10"])
def test_a_length_that_is_none_is_a_bad_request(server: Running, length: bytes) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + length + b"\r\n\r\n"
    assert raw(server, head).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("name", ["x-request-id", "authorization", "x-other"])
def test_a_head_of_a_megabyte_is_refused(server: Running, name: str) -> None:
    answer = raw(server, b"GET /health HTTP/1.1\r\nHost: x\r\n" + name.encode() + b": " + b"a" * 2**20 + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431")
    assert b'"head_too_large"' in answer
    assert server.get("/health").status_code == 200


def test_an_endless_request_line_and_endless_headers_are_cut_off(server: Running) -> None:
    assert raw(server, b"GET /" + b"a" * 70_000).startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
    assert raw(server, b"GET / HTTP/1.1\r\n", *[b"X-A: b\r\n" * 100] * 100).startswith(b"HTTP/1.1 431")


def test_a_head_in_two_large_pieces_is_counted_whole(server: Running) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 6000)
        time.sleep(0.3)
        connection.sendall(b"X-A: b\r\n" * 4000)
        assert connection.recv(65536).startswith(b"HTTP/1.1 431")


def test_many_short_requests_in_one_piece_are_no_long_head(server: Running) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 40_000 + b"\r\n\r\n"
    last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert raw(server, request * 3 + last).count(b"HTTP/1.1 200") == 4


def test_a_long_body_right_behind_a_short_head_is_not_counted_as_head() -> None:
    with serving(scripted()) as server:
        body = b'{"prompt": "a", "max_tokens": 1}' + b" " * 300_000
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: %s\r\n"
        head += b"Content-Length: %d\r\n\r\n"
        request = head % (b"keep-alive", len(body)) + body
        last = head % (b"close", len(body)) + body
        assert raw(server, request + last).count(b"HTTP/1.1 200") == 2


def test_client_ids_come_back_short_and_clean(server: Running) -> None:
    def echoed(value: str) -> str:
        return server.get("/health", headers={b"x-request-id": value.encode()}).headers["x-request-id"]

    assert echoed("abc-1.2:3_4") == "abc-1.2:3_4"
    assert echoed("a b<c>é") == "a_b_c___"
    assert echoed("x" * 1000) == "x" * 128
    assert len(echoed("")) == 32
    assert server.get("/health").headers["x-request-id"] != server.get("/health").headers["x-request-id"]


@pytest.mark.parametrize("target", [b"OPTIONS * HTTP/1.1", b"GET http://x/health HTTP/1.1", b"CONNECT x:1 HTTP/1.1"])
def test_unusual_request_targets_are_answered(server: Running, target: bytes) -> None:
    answer = raw(server, target + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.split(b" ")[1] in (b"200", b"400", b"404", b"405")
    assert server.get("/health").status_code == 200


def test_all_bodies_together_have_a_limit_and_give_their_room_back() -> None:
    def begin(connection: socket.socket) -> None:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Content-Length: 4000\r\n\r\n" + b" " * 3000)

    with serving(scripted(), max_body_bytes=4096, max_total_body_bytes=8192) as server:
        address = ("127.0.0.1", server.port)
        first, second = socket.create_connection(address, timeout=5), socket.create_connection(address, timeout=5)
        begin(first)
        begin(second)
        time.sleep(0.3)
        padded = b'{"prompt": "a", "max_tokens": 1}' + b" " * 3000
        settings = {"content": padded, "headers": {"content-type": "application/json"}}
        answer = httpx.post(f"{server.url}/v1/completions", **settings)  # type: ignore[arg-type]
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["code"] == "capacity"
        assert "--max-total-body-bytes" in answer.json()["error"]["message"]
        assert server.post("completions", {"prompt": "a", "max_tokens": 1}).status_code == 200
        assert server.get("/health").status_code == 200
        first.close()
        time.sleep(0.3)
        assert httpx.post(f"{server.url}/v1/completions", **settings).status_code == 200  # type: ignore[arg-type]
        second.close()


def test_a_body_counts_until_its_request_is_answered() -> None:
    padded = b'{"prompt": "a", "max_tokens": 900, "stream": true}' + b" " * 3000
    headers = {"content-type": "application/json"}
    with serving(scripted("x" * 1000, delay_s=0.01), max_body_bytes=4096, max_total_body_bytes=4096) as server:
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, content=padded, headers=headers) as running:
            assert running.status_code == 200
            assert httpx.post(url, content=padded, headers=headers).status_code == 503
        time.sleep(0.3)
        with httpx.stream("POST", url, content=padded, headers=headers) as again:
            assert again.status_code == 200
