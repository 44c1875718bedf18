"""What stands in the bytes of a connection beside plain requests: offers of other protocols, and requests in heaps."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from corefw.server.http_parsing import MAX_PIPELINED
from tests.server.serving import Running, scripted, serving, wait_until

BODY = b'{"prompt": "a", "max_tokens": 3}'
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
WEBSOCKET = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n"
PING = b"GET /ping HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(scripted("Hello, world!", delay_s=0.01)) as running:
        yield running


def completion(*fields: bytes, body: bytes = BODY) -> bytes:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return head + b"".join(fields) + b"\r\n" + body


def length(body: bytes = BODY) -> bytes:
    return b"Content-Length: %d\r\n" % len(body)


def chunked(body: bytes = BODY) -> bytes:
    return b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"


def answers(server: Running, *packets: bytes) -> list[tuple[int, str]]:
    """Status and body of each answer to what is sent before a last request that ends the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        for packet in (*packets, PING + b"Connection: close\r\n\r\n"):
            connection.sendall(packet)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    parts = received.split(b"HTTP/1.1 ")[1:]
    return [(int(part[:3]), part.partition(b"\r\n\r\n")[2].decode()) for part in parts]


@pytest.mark.parametrize("offer", [OFFER, WEBSOCKET])
@pytest.mark.parametrize("num_packets", [1, 2, 1000])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_request_that_offers_an_upgrade_is_answered_like_any(
    server: Running, offer: bytes, num_packets: int, is_chunked: bool
) -> None:
    if is_chunked:
        request = completion(offer, b"Transfer-Encoding: chunked\r\n", body=chunked())
    else:
        request = completion(offer, length())
    size = -(-len(request) // num_packets)
    packets = [request[start : start + size] for start in range(0, len(request), size)]
    (status, body), (last, _) = answers(server, *packets)
    assert (status, last) == (200, 200)
    assert json.loads(body)["choices"][0]["text"] == "Hel"


def test_a_body_behind_an_offered_upgrade_is_no_request_of_its_own(server: Running) -> None:
    inner = PING + b"\r\n"
    found = answers(server, completion(OFFER, length(inner), body=inner))
    assert [status for status, _ in found] == [400, 200]


def test_offers_without_a_body_can_follow_each_other(server: Running) -> None:
    found = answers(server, *[PING + WEBSOCKET + b"\r\n"] * 3, completion(OFFER, length()))
    assert [status for status, _ in found] == [200] * 5


def test_a_connection_may_send_some_requests_ahead_and_gets_all_answers_in_order(server: Running) -> None:
    names = [f"name-{i}".encode() for i in range(MAX_PIPELINED)]
    found = answers(server, b"".join(b"GET /v1/models/%s HTTP/1.1\r\n\r\n" % name for name in names))
    assert len(found) == MAX_PIPELINED + 1
    assert {status for status, _ in found[:-1]} == {404}


def test_a_connection_that_sends_thousands_of_requests_ahead_is_closed_after_a_few_answers(server: Running) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(completion(length()) + (PING + b"\r\n") * 1000)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    assert received.count(b"HTTP/1.1 200 ") == 1 + MAX_PIPELINED
    assert received.count(b"HTTP/1.1 ") == 1 + MAX_PIPELINED
    wait_until(lambda: not server.server.server_state.connections)


def test_what_is_no_http_gets_an_error_as_every_other_failure_does(server: Running) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    assert received.startswith(b"HTTP/1.1 400 ")
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


def test_garbage_behind_a_request_does_not_get_into_its_answer(server: Running) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(completion(length()) + b"\x00garbage\r\n\r\n")
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    assert received.count(b"HTTP/1.1 ") == 1
    assert json.loads(received.partition(b"\r\n\r\n")[2])["choices"][0]["text"] == "Hel"
