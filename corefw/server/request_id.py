"""Request ids: taken from the client where they are harmless, made where there is none, always sent back."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corefw.observability.logging import set_request_id

__all__ = ["MAX_ID_CHARS", "RequestIds", "clean_id", "request_id_of"]

MAX_ID_CHARS = 128
_HEADER = b"x-request-id"
_STATE_KEY = "request_id"
_UNWANTED = re.compile(r"[^A-Za-z0-9_.:\-]")


class RequestIds:
    """Gives each request an id for logs, errors and the header ``X-Request-Id``. The engine never sees it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _from_headers(scope) or uuid.uuid4().hex
        scope.setdefault("state", {})[_STATE_KEY] = request_id
        set_request_id(request_id)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


def request_id_of(scope: Scope) -> str:
    """The id that ``RequestIds`` gave."""
    return str(scope.get("state", {}).get(_STATE_KEY, "unknown"))


def clean_id(text: str) -> str:
    """At most ``MAX_ID_CHARS`` characters that are safe in headers, logs and JSON; others become ``_``."""
    return _UNWANTED.sub("_", text[:MAX_ID_CHARS])


def _from_headers(scope: Scope) -> str:
    values = (value for name, value in scope["headers"] if name == _HEADER)
    return clean_id(next(values, b"")[:MAX_ID_CHARS].decode("latin-1").strip())
