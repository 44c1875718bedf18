"""Streams of events on the wire: when their parts go out, and what keeps them alive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from corefw.errors import EngineError
from corefw.server.event_stream import EventStream
from corefw.server.in_flight import InFlight

SCOPE = {"type": "http", "headers": []}


class Number(msgspec.Struct):
    value: int


class Client:
    """Takes what is sent; a slow one takes its time."""

    def __init__(self, slow_s: float = 0.0) -> None:
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self._slow_s = slow_s

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        await asyncio.sleep(self._slow_s)
        self.sent.append(message)

    @property
    def pieces(self) -> list[bytes]:
        return [message["body"] for message in self.sent if message["type"] == "http.response.body"]


async def numbers(*delays_s: float, then: Exception | None = None) -> AsyncGenerator[msgspec.Struct, None]:
    for value, delay_s in enumerate(delays_s):
        await asyncio.sleep(delay_s)
        yield Number(value)
    if then is not None:
        raise then


async def stream(client: Client, events: AsyncGenerator[msgspec.Struct, None], keep_alive_s: float) -> None:
    await EventStream(events, InFlight(), keep_alive_s=keep_alive_s)(SCOPE, client.receive, client.send)


async def test_a_comment_goes_out_whenever_nothing_else_does() -> None:
    client = Client()
    await stream(client, numbers(0.0, 0.5, 0.0), keep_alive_s=0.1)
    first, *comments, second, third, done = client.pieces
    assert (first, second, third, done) == (
        b'data: {"value":0}\n\n',
        b'data: {"value":1}\n\n',
        b'data: {"value":2}\n\n',
        b"data: [DONE]\n\n",
    )
    assert 2 <= len(comments) <= 5
    assert set(comments) == {b": keep-alive\n\n"}


async def test_events_that_come_often_need_no_comments() -> None:
    client = Client()
    await stream(client, numbers(*[0.01] * 30), keep_alive_s=0.2)
    assert len(client.pieces) == 31


async def test_without_an_interval_there_are_no_comments() -> None:
    client = Client()
    await stream(client, numbers(0.3), keep_alive_s=0.0)
    assert len(client.pieces) == 2


async def test_a_first_event_that_takes_long_is_announced_by_comments() -> None:
    client = Client()
    await stream(client, numbers(0.3), keep_alive_s=0.1)
    assert client.sent[0]["type"] == "http.response.start"
    assert client.pieces[0] == b": keep-alive\n\n"


async def test_what_fails_before_anything_was_sent_is_an_ordinary_error() -> None:
    client = Client()
    with pytest.raises(EngineError):
        await stream(client, numbers(then=EngineError("no")), keep_alive_s=0.5)
    assert client.sent == []


async def test_what_fails_after_a_comment_is_an_event() -> None:
    async def events() -> AsyncGenerator[msgspec.Struct, None]:
        await asyncio.sleep(0.25)
        raise EngineError("no")
        yield

    client = Client()
    await stream(client, events(), keep_alive_s=0.1)
    assert b'"message":"no"' in client.pieces[-1]
    assert client.sent[-1]["more_body"] is False


async def test_pieces_that_come_at_once_start_the_answer_once() -> None:
    client = Client(slow_s=0.05)
    await stream(client, numbers(0.1, 0.01, 0.1), keep_alive_s=0.02)
    assert [message["type"] for message in client.sent].count("http.response.start") == 1
    assert client.sent[0]["type"] == "http.response.start"
    assert [piece for piece in client.pieces if piece.startswith(b"data")] == [
        *(b'data: {"value":%d}\n\n' % value for value in range(3)),
        b"data: [DONE]\n\n",
    ]


async def test_a_client_that_goes_ends_the_comments() -> None:
    client = Client()
    asyncio.get_running_loop().call_later(0.25, client.gone.set)
    await stream(client, numbers(0.0, 60), keep_alive_s=0.1)
    num_sent = len(client.sent)
    await asyncio.sleep(0.3)
    assert len(client.sent) == num_sent
