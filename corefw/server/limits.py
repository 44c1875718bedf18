"""Limits on what a client may send."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corefw.errors import CapacityError, RequestError
from corefw.server.errors import error_response
from corefw.server.request_id import request_id_of

__all__ = ["BodyLimit"]


class BodyLimit:
    """Refuses a body that is too large: by its declared length at once, else while it is read.

    What is read of all bodies together is bounded as well. It counts until its request has been answered: so long a
    body, or what was made of it, is in memory.
    """

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, max_total_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._max_total_bytes = max_total_bytes
        self._total_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        error = self._check_declared(scope)
        if error is not None:
            await error_response(error, request_id_of(scope))(scope, receive, send)
            return
        num_bytes = 0

        async def counting_receive() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_new_bytes = len(message.get("body", b""))
            num_bytes += num_new_bytes
            self._total_bytes += num_new_bytes
            if num_bytes > self._max_body_bytes:
                raise self._too_large()
            if self._total_bytes > self._max_total_bytes:
                raise self._no_room()
            return message

        try:
            await self._app(scope, counting_receive, send)
        finally:
            self._total_bytes -= num_bytes

    def _check_declared(self, scope: Scope) -> RequestError | None:
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        # isdigit on bytes is ASCII only; a length of twenty digits is too large whatever it is.
        if not declared.isdigit():
            return RequestError("the Content-Length header is not a number")
        if len(declared) > 19 or int(declared) > self._max_body_bytes:
            return self._too_large()
        return None

    def _too_large(self) -> RequestError:
        return RequestError(
            f"the body has more than {self._max_body_bytes} bytes (--max-body-bytes)",
            code="body_too_large",
            status=413,
        )

    def _no_room(self) -> CapacityError:
        return CapacityError(
            f"the requests that are being answered have bodies of {self._max_total_bytes} bytes together "
            "(--max-total-body-bytes); try again later",
            status=503,
        )
