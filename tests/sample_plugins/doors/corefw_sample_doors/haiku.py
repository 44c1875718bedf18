"""An endpoint that generates: ``POST /plugins/haiku/write``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from corefw.interfaces.endpoint import Endpoint
from corefw.sdk.server import RequestShape, json_response, read_object

if TYPE_CHECKING:
    from corefw.interfaces.server_state import ServerState


class HaikuRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What it is about."""

    subject: str
    max_tokens: int = 8


class Haiku(msgspec.Struct, kw_only=True):
    """The answer."""

    text: str


_REQUEST = RequestShape(struct=HaikuRequest, neutral={}, ignored=frozenset())


class HaikuEndpoint(Endpoint):
    """Asks the model for a poem."""

    name = "haiku"
    required_tasks = frozenset({"generate"})

    def routes(self) -> Sequence[BaseRoute]:
        """One route, under the default prefix."""
        return [Route("/write", self._write, methods=["POST"])]

    async def startup(self, state: ServerState) -> None:
        """Keep the client."""
        self._client = state.client

    async def _write(self, request: Request) -> Response:
        fields = _REQUEST.decode(await read_object(request))
        chat = [{"role": "user", "content": f"A haiku about {fields.subject}"}]
        params = self._client.default_params(temperature=0.0, max_tokens=fields.max_tokens)
        updates = self._client.generate(chat, params, route=request.url.path, tags={"door": "haiku"})
        async with aclosing(updates) as stream:
            return json_response(Haiku(text="".join([update.text async for update in stream])))
