"""Counts HTTP requests by method, route and status."""

from __future__ import annotations

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corefw.observability.metrics import Metrics
from corefw.server.refusals import status_without_answer

__all__ = ["HttpMetrics"]

# A path that is none of the server's: whatever clients make up, the label stays one.
_NO_ROUTE = "other"


class HttpMetrics:
    """Stands where the scope is the one that the router writes the route into."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0

        async def noting_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        except Exception as error:
            if not isinstance(error, ClientDisconnect):
                status = status or 500  # which is what the error barrier makes of it
            raise
        finally:
            self._metrics.http_request(scope["method"], _route(scope), status or status_without_answer(scope))


def _route(scope: Scope) -> str:
    path = getattr(scope.get("route"), "path", None)  # as it was declared, with its parameters' names
    return str(path) if path else _NO_ROUTE
