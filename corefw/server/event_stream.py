"""Server-sent events: one JSON value an event, an error event where a stream breaks, ``[DONE]`` where it doesn't."""

from __future__ import annotations

from collections.abc import AsyncGenerator
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
_encode = msgspec.json.Encoder().encode


class EventStream(Response):
    """Streams values as events.

    Headers go out with the first event, so whatever fails before it is an ordinary error answer. The generator is
    closed when the client goes, when the server stops, and at the end.

    Args:
        events: what is sent.
        in_flight: ends it early.
        place: held while events are made; what entering it raises is the answer.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[msgspec.Struct, None],
        in_flight: InFlight,
        place: AbstractContextManager[None] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._events = events
        self._in_flight = in_flight
        self._place = place or nullcontext()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        last = _DONE
        try:
            with self._place:
                async with aclosing(self._events) as events, self._in_flight.watch(receive):
                    async for event in events:
                        if not started:
                            started = True
                            await self._start(send)
                        await send({"type": "http.response.body", "body": _frame(event), "more_body": True})
        except ClientDisconnect:
            return
        except Exception as error:
            if not started:
                raise
            last = _error_event(error, request_id_of(scope))
        if not started:
            await self._start(send)
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _start(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})


def _frame(value: msgspec.Struct) -> bytes:
    return b"data: " + _encode(value) + b"\n\n"


def _error_event(error: Exception, request_id: str) -> bytes:
    if isinstance(error, CorefwError):
        logger.warning("request %s failed in its stream: %s", request_id, error)
    else:
        logger.error("request %s failed unexpectedly in its stream", request_id, exc_info=error)
    return _frame(describe(error, request_id)[1])
