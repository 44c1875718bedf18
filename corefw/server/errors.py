"""Every failure as an OpenAI-shaped body: bounded, without the client's input and without internals."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corefw.errors import (
    CapacityError,
    CorefwError,
    EngineAwayError,
    EngineDeadError,
    EngineError,
    RequestError,
    RequestTimeoutError,
)
from corefw.observability.logging import get_logger
from corefw.server.protocol.answers import ErrorBody, ErrorDetail
from corefw.server.request_id import request_id_of

__all__ = ["ErrorBarrier", "describe", "error_response", "handle_error"]

logger = get_logger(__name__)

# An error's body stays below 2 KB: message, field, and what surrounds them.
_MAX_MESSAGE_BYTES = 1000
_MAX_PARAM_BYTES = 300


def describe(error: Exception, request_id: str) -> tuple[int, ErrorBody]:
    """Status and body for an error. What isn't ours to explain to clients becomes a generic text with the id."""
    if isinstance(error, RequestError):
        return error.status, _body(error.message, error.error_type, param=error.param, code=error.code)
    if isinstance(error, CapacityError):
        kind = "rate_limit_error" if error.status == 429 else "server_error"
        return error.status, _body(str(error), kind, code="capacity")
    if isinstance(error, RequestTimeoutError):
        return 504, _body(str(error), "server_error", code="request_timeout")
    if isinstance(error, EngineDeadError):
        return 503, _body(str(error), "server_error", code="engine_dead")
    if isinstance(error, EngineAwayError):
        return 503, _body(str(error), "server_error", code="engine_away")
    if isinstance(error, EngineError):
        return 500, _body(str(error), "server_error", code="engine_error")
    if isinstance(error, HTTPException):
        return error.status_code, _body(_http_text(error), "invalid_request_error", code=_http_code(error))
    return 500, _body(f"internal server error; the log has the details under request id {request_id}", "server_error")


def error_response(error: Exception, request_id: str) -> Response:
    """The answer to a request that failed before its answer began."""
    status, body = describe(error, request_id)
    headers: dict[str, str] = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    if isinstance(error, CapacityError):
        headers["retry-after"] = str(error.retry_after_s)
    return json_error(status, body, headers)


def json_error(status: int, body: ErrorBody, headers: Mapping[str, str] | None = None) -> Response:
    """An error as a response."""
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


async def handle_error(request: Request, error: Exception) -> Response:
    """Starlette's exception handler for errors that are raised on purpose."""
    request_id = request_id_of(request.scope)
    if not isinstance(error, RequestError | HTTPException):
        logger.warning("request %s failed: %s", request_id, error)
    return error_response(error, request_id)


class ErrorBarrier:
    """Turns whatever nobody caught into a 500 with a request id; the traceback goes to the log alone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = client_left = False

        async def noting_receive() -> Message:
            nonlocal client_left
            message = await receive()
            client_left = client_left or message["type"] == "http.disconnect"
            return message

        async def noting_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, noting_receive, noting_send)
            if not started and not client_left:
                raise RuntimeError("nothing answered the request")
        except ClientDisconnect:
            return
        except (Exception, SystemExit) as raised:  # a handler that asks for the end is answered like one that fails
            error = raised if isinstance(raised, Exception) else RuntimeError("a handler asked the process to end")
            request_id = request_id_of(scope)
            if not isinstance(error, CorefwError):
                logger.exception("request %s failed unexpectedly", request_id)
            if started:
                raise error from None  # the server below closes the connection, which says that it is torn
            await error_response(error, request_id)(scope, receive, send)


def _body(message: str, kind: str, *, param: str | None = None, code: str | None = None) -> ErrorBody:
    short_param = None if param is None else _bounded(param, _MAX_PARAM_BYTES)
    return ErrorBody(
        error=ErrorDetail(message=_bounded(message, _MAX_MESSAGE_BYTES), type=kind, param=short_param, code=code)
    )


def _bounded(text: str, max_bytes: int) -> str:
    # Control characters would grow sixfold in JSON; there are none in a text that we wrote.
    plain = "".join(c if c.isprintable() else " " for c in text[:max_bytes])
    return plain.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore")


def _http_text(error: HTTPException) -> str:
    if error.status_code == 404:
        return "there is no such route; /openapi.json lists those that are served"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return f"this route doesn't take that method; it takes {allowed}"
    return error.detail


def _http_code(error: HTTPException) -> str | None:
    return {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
