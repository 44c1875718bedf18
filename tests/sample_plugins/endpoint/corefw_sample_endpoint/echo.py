"""One route that returns what it got."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from corefw.interfaces.endpoint import Endpoint


class EchoEndpoint(Endpoint):
    """POST /sample/echo."""

    name = "echo"

    def routes(self) -> Sequence[BaseRoute]:
        """The route."""
        return (Route("/sample/echo", _echo, methods=["POST"]),)


async def _echo(request: Request) -> Response:
    return Response(await request.body())
