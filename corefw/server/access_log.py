"""The access log: one line a request, never its query, its headers or its body."""

from __future__ import annotations

import contextvars
import time
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corefw.observability.logging import get_logger
from corefw.server.refusals import status_without_answer
from corefw.server.request_id import request_id_of

__all__ = ["AccessLog", "log_refusal"]

logger = get_logger(__name__)

_MAX_PATH_CHARS = 256


class AccessLog:
    """Writes a line when an answer has ended; one that broke off is told as ``incomplete``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun_s = time.monotonic()
        status = 0
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
            duration_s = time.monotonic() - begun_s
            _write(scope, status or status_without_answer(scope), duration_s, is_complete=is_complete or not status)


def log_refusal(client: tuple[str, int] | None, status: int, code: str | None) -> None:
    """Write a line for what never became a request: method and path aren't known."""
    fields = {"client": _address(client), "status": status, "code": code}
    # The protocol's callbacks may run in the context of a request, whose id this isn't.
    contextvars.Context().run(logger.info, "%s - - %d %s", fields["client"], status, code, extra={"fields": fields})


def _address(client: tuple[str, int] | None) -> str:
    return f"{client[0]}:{client[1]}" if client else "unix"


def _write(scope: Scope, status: int, duration_s: float, *, is_complete: bool) -> None:
    fields = {
        "client": _address(scope.get("client")),
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
