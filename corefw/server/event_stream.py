"""Server-sent events: one JSON value an event, an error event where a stream breaks, ``[DONE]`` where it doesn't."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager, aclosing, nullcontext

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from corefw.errors import CorefwError
from corefw.observability.logging import get_logger
from corefw.server.errors import describe
from corefw.server.in_flight import InFlight
from corefw.server.request_id import request_id_of

__all__ = ["EventStream"]

logger = get_logger(__name__)

_DONE = b"data: [DONE]\n\n"
# A comment, which clients skip; what stands between them and the server sees that the connection is in use.
_STILL_THERE = b": keep-alive\n\n"
_encode = msgspec.json.Encoder().encode


class EventStream(Response):
    """Streams values as events.

    Headers go out with the first event, so whatever fails before it is an ordinary error answer; or with the first
    comment, where the first event takes long. The generator is closed when the client goes, when the server stops, and
    at the end.

    Args:
        events: what is sent.
        in_flight: ends it early.
        place: held while events are made; what entering it raises is the answer.
        keep_alive_s: a comment is sent whenever nothing else was for so long; 0: never.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[msgspec.Struct, None],
        in_flight: InFlight,
        place: AbstractContextManager[None] | None = None,
        keep_alive_s: float = 0.0,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._events = events
        self._in_flight = in_flight
        self._place = place or nullcontext()
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = _Body(send, self.status_code, self.raw_headers)
        last = _DONE
        try:
            with self._place:
                async with (
                    aclosing(self._events) as events,
                    self._in_flight.watch(receive),
                    body.kept_alive(self._keep_alive_s),
                ):
                    async for event in events:
                        await body.write(_frame(event))
        except ClientDisconnect:
            return
        except Exception as error:
            if not body.is_started:
                raise
            last = _error_event(error, request_id_of(scope))
        await body.write(last, is_last=True)


class _Body:
    """What goes to the client: started by the first piece, and not torn by pieces that come at the same time."""

    def __init__(self, send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._status = status
        self._headers = headers
        self._lock = asyncio.Lock()
        self._last_s = asyncio.get_running_loop().time()
        self.is_started = False

    async def write(self, piece: bytes, *, is_last: bool = False) -> None:
        async with self._lock:
            if not self.is_started:
                await self._send({"type": "http.response.start", "status": self._status, "headers": self._headers})
                self.is_started = True
            await self._send({"type": "http.response.body", "body": piece, "more_body": not is_last})
            self._last_s = asyncio.get_running_loop().time()

    @contextlib.asynccontextmanager
    async def kept_alive(self, interval_s: float) -> AsyncIterator[None]:
        """A block in which the client never waits longer than that for a sign of life."""
        if interval_s == 0:
            yield
            return
        task = asyncio.create_task(self._keep_alive(interval_s))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):  # OSError: the client has gone
                await task

    async def _keep_alive(self, interval_s: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            wait_s = self._last_s + interval_s - loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            else:
                await self.write(_STILL_THERE)


def _frame(value: msgspec.Struct) -> bytes:
    return b"data: " + _encode(value) + b"\n\n"


def _error_event(error: Exception, request_id: str) -> bytes:
    if isinstance(error, CorefwError):
        logger.warning("request %s failed in its stream: %s", request_id, error)
    else:
        logger.error("request %s failed unexpectedly in its stream", request_id, exc_info=error)
    return _frame(describe(error, request_id)[1])
