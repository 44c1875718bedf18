"""``/openapi.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from corefw.interfaces.endpoint import Endpoint
from corefw.server.openapi import JSON, Operation, fragment
from corefw.server.openapi_document import document_of

__all__ = ["OpenApiEndpoint"]


class OpenApiEndpoint(Endpoint):
    """Describes the server's routes for programs."""

    name = "openapi"
    prefix = ""

    def routes(self) -> Sequence[BaseRoute]:
        """One route."""
        return [Route("/openapi.json", _document, methods=["GET"])]

    def openapi(self) -> Mapping[str, Any]:
        """The document describes its own route, too."""
        return fragment(
            Operation(
                method="GET",
                path="/openapi.json",
                summary="This document",
                description="Every route of this server in OpenAPI 3.1.",
                answer=ApiDescription,
            )
        )


class ApiDescription(msgspec.Struct, kw_only=True):
    """An OpenAPI document; its specification says the rest."""

    openapi: str
    info: dict[str, Any]
    servers: list[dict[str, Any]]
    paths: dict[str, Any]
    components: dict[str, Any]


async def _document(request: Request) -> Response:
    return Response(msgspec.json.encode(document_of(request)), media_type=JSON)
