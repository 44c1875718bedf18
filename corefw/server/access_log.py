"""The access log: one line a request, never its query, its headers or its body."""

from __future__ import annotations

import time
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corefw.observability.logging import get_logger
from corefw.server.request_id import request_id_of

__all__ = ["AccessLog"]

logger = get_logger(__name__)

_MAX_PATH_CHARS = 256
# As nginx writes it: the client went before there was an answer.
_CLIENT_GONE = 499


class AccessLog:
    """Writes a line when an answer has ended; one that broke off is told as ``incomplete``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun_s = time.monotonic()
        status = _CLIENT_GONE
        is_complete = False

        async def noting_send(message: Message) -> None:
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)
            if message["type"] == "http.response.body":
                is_complete = not message.get("more_body", False)

        try:
            await self._app(scope, receive, noting_send)
        finally:
            _write(scope, status, time.monotonic() - begun_s, is_complete=is_complete or status == _CLIENT_GONE)


def _write(scope: Scope, status: int, duration_s: float, *, is_complete: bool) -> None:
    client = scope.get("client")
    fields = {
        "client": f"{client[0]}:{client[1]}" if client else "unix",
        "method": scope["method"][:16],
        "path": quote(scope["path"][:_MAX_PATH_CHARS]),
        "status": status,
        "duration_ms": round(duration_s * 1000, 1),
        "complete": is_complete,
        "request_id": request_id_of(scope),
    }
    logger.info(
        "%s %s %s %d %.1f ms %s%s",
        fields["client"],
        fields["method"],
        fields["path"],
        status,
        fields["duration_ms"],
        fields["request_id"],
        "" if is_complete else " incomplete",
        extra={"fields": fields},
    )
