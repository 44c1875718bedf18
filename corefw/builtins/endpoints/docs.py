"""``/docs``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from corefw.interfaces.endpoint import Endpoint
from corefw.server.openapi import Operation, fragment
from corefw.server.openapi_document import document_of
from corefw.server.openapi_page import CONTENT_SECURITY_POLICY, render_page

__all__ = ["DocsEndpoint"]

_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class DocsEndpoint(Endpoint):
    """Describes the server's routes for people."""

    name = "docs"
    prefix = ""

    def routes(self) -> Sequence[BaseRoute]:
        """One route."""
        return [Route("/docs", _page, methods=["GET"])]

    def openapi(self) -> Mapping[str, Any]:
        """A page."""
        return fragment(
            Operation(
                method="GET",
                path="/docs",
                summary="This document as a page",
                description="One page that loads nothing else.",
                text_types=("text/html",),
            )
        )


async def _page(request: Request) -> Response:
    return HTMLResponse(render_page(document_of(request)), headers=_HEADERS)
