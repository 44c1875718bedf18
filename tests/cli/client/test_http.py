"""The client against a server that writes given bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from corefw.cli.client.http import HttpTransport
from corefw.cli.client.transport import EventSplitter, TransportError, events


@asynccontextmanager
async def server(*answers: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Gives each request the next answer, an empty one by closing; the address, and what each connection received."""
    received: list[bytes] = []
    left = list(answers)
    connections: list[asyncio.Future[None]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(ended := asyncio.get_running_loop().create_future())
        position = len(received)
        received.append(b"")
        while left and (data := await reader.read(65536)):
            received[position] += data
            if not (answer := left.pop(0)):
                break
            writer.write(answer)
            await writer.drain()
        writer.close()
        ended.set_result(None)

    running = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with running:
        yield f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}", received
        await asyncio.gather(*connections)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
STREAM = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'b\r\ndata: {"a":\r\n8\r\n 1}\n\ndat\r\n10\r\na: {"a": 2}\n\ndat\r\ne\r\na: [DONE]\n\n\n\n\n\r\n0\r\n\r\n'
)


async def test_one_connection_carries_many_requests() -> None:
    async with server(OK, OK) as (url, received):
        transport = HttpTransport(url, api_key="k")
        for _ in range(2):
            answer = await transport.send("GET", "/v1/models")
            assert (answer.status, await answer.read()) == (200, b"hi")
        await transport.close()
    assert len(received) == 1
    assert received[0].count(b"Authorization: Bearer k\r\n") == 2


async def test_without_reuse_each_request_has_its_own() -> None:
    async with server(OK, OK) as (url, received):
        transport = HttpTransport(url, reuse=False)
        for _ in range(2):
            await (await transport.send("GET", "/")).read()
        await transport.close()
    assert len(received) == 2


async def test_a_request_on_a_connection_that_had_been_idle_is_sent_again_when_it_closes_unanswered() -> None:
    async with server(OK, b"", OK) as (url, received):
        transport = HttpTransport(url)
        for _ in range(2):
            assert await (await transport.send("POST", "/", b"{}")).read() == b"hi"
        await transport.close()
    assert [part.count(b"POST / ") for part in received] == [2, 1]


@pytest.mark.parametrize("answers", [(b"",), (OK, b"HTTP/1.1 200")])
async def test_a_new_connection_or_one_that_began_to_answer_is_not_tried_again(answers: tuple[bytes, ...]) -> None:
    async with server(*answers) as (url, received):
        transport = HttpTransport(url)
        for _ in answers[1:]:
            await (await transport.send("GET", "/")).read()
        with pytest.raises(TransportError, match="broke off"):
            await transport.send("GET", "/")
        await transport.close()
    assert len(received) == 1


async def test_what_a_server_dies_of_is_sent_again_once_however_many_connections_are_idle() -> None:
    async with server(OK, OK, OK, b"", b"") as (url, received):
        transport = HttpTransport(url)
        for answer in await asyncio.gather(*[transport.send("GET", "/") for _ in range(3)]):
            await answer.read()
        with pytest.raises(TransportError, match="broke off"):
            await transport.send("POST", "/")
        await transport.close()
    assert sum(part.count(b"POST / ") for part in received) == 2


async def test_events_are_found_however_the_bytes_are_cut() -> None:
    async with server(STREAM) as (url, _):
        transport = HttpTransport(url)
        assert [event async for event in events(transport, "/", {})] == [{"a": 1}, {"a": 2}]
        await transport.close()


async def test_an_answer_that_breaks_off_is_an_error() -> None:
    async with server(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi") as (url, _):
        transport = HttpTransport(url)
        answer = await transport.send("GET", "/")
        with pytest.raises(TransportError, match="broke off"):
            await answer.read()
        await transport.close()


async def test_what_is_not_http_is_an_error() -> None:
    async with server(b"SSH-2.0-OpenSSH\r\n\r\n") as (url, _):
        transport = HttpTransport(url)
        with pytest.raises(TransportError, match="not HTTP"):
            await transport.send("GET", "/")
        await transport.close()


def test_the_splitter_keeps_what_is_not_complete() -> None:
    splitter = EventSplitter()
    assert splitter.push(b"data: 1\n\nda") == [b"1"]
    assert splitter.push(b"ta: 2") == []
    assert splitter.push(b"\r\n\n: comment\n") == [b"2"]
