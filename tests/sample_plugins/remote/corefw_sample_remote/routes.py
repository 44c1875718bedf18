"""Routes that call the functions and read the events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute, Route

from corefw.interfaces.endpoint import Endpoint
from corefw.sdk.server import json_response, read_object, state_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from corefw.interfaces.server_state import EventSubscription, ServerState


class RemoteRoutes(Endpoint):
    """A way to the plugin's functions, for operators."""

    name = "remote_routes"

    def routes(self) -> Sequence[BaseRoute]:
        """Two routes."""
        return [
            Route("/call", self._call, methods=["POST"]),
            Route("/next_event", self._next_event),
        ]

    async def startup(self, state: ServerState) -> None:
        """Read events from now on."""
        self._events: EventSubscription = state.engine.subscribe("remote.ended")

    async def shutdown(self) -> None:
        """Read no more."""
        self._events.close()

    async def _call(self, request: Request) -> Response:
        body = await read_object(request)
        timeout_s = body.get("timeout_s", 5.0)
        answer = await state_of(request).engine.call_plugin(body["name"], *body.get("args", []), timeout_s=timeout_s)
        return json_response({"answer": answer})

    async def _next_event(self, request: Request) -> Response:
        async for event in self._events:
            return json_response({"topic": event.topic, "data": event.data, "process": event.process})
        return json_response({})
