from __future__ import annotations

import pytest
from starlette.types import Message, Receive, Scope, Send

from corefw.server.errors import ErrorBarrier

SCOPE: Scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "state": {}}


async def watching(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def silent(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()


async def run(app: object, *messages: Message) -> list[Message]:
    """What is sent to a client that sends these."""
    sent: list[Message] = []
    waiting = iter(messages)

    async def receive() -> Message:
        return next(waiting)

    async def send(message: Message) -> None:
        sent.append(message)

    await ErrorBarrier(app)(dict(SCOPE), receive, send)  # type: ignore[arg-type]
    return sent


async def test_a_client_that_left_needs_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    request = {"type": "http.request", "body": b"", "more_body": False}
    assert await run(watching, request, {"type": "http.disconnect"}) == []
    assert caplog.records == []


async def test_a_client_that_waits_is_told_that_nothing_answered(caplog: pytest.LogCaptureFixture) -> None:
    start, *_ = await run(silent, {"type": "http.request", "body": b"", "more_body": False})
    assert start["status"] == 500
    assert "nothing answered the request" in caplog.text
