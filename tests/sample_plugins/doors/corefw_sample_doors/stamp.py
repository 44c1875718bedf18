"""A hook module: a header on every answer, and one more on the answers of a core route."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corefw.errors import CapacityError
from corefw.interfaces.hooks.http import HttpMiddleware, RouteWrapper
from corefw.sdk.plugins import hookimpl


class Stamped:
    """An ASGI app whose answers have a header; ``x-sample-fail`` makes it fail."""

    def __init__(self, app: ASGIApp, header: str) -> None:
        self._app = app
        self._header = header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the header."""
        wish = dict(scope["headers"]).get(b"x-sample-fail")
        if wish == b"busy":
            raise CapacityError("the sample has no room")
        if wish == b"bug":
            raise RuntimeError("a secret of the sample")

        async def stamping_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[self._header] = "1"
            await send(message)

        await self._app(scope, receive, stamping_send)


class Everywhere(HttpMiddleware):
    """Around all routes."""

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """The layer."""
        return Stamped(app, "x-sample-everywhere")


class Models(RouteWrapper):
    """Around the list of models."""

    routes = ("GET /v1/models",)

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """The layer."""
        return Stamped(app, "x-sample-models")


@hookimpl
def corefw_middleware() -> HttpMiddleware:
    """The layer around all."""
    return Everywhere()


@hookimpl
def corefw_route_wrapper() -> RouteWrapper:
    """The layer around one."""
    return Models()
