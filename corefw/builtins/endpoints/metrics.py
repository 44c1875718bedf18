"""``/metrics``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from corefw.interfaces.endpoint import Endpoint
from corefw.observability.metrics import CONTENT_TYPE, OPENMETRICS_CONTENT_TYPE
from corefw.server.openapi import Operation, fragment
from corefw.server.state import state_of

__all__ = ["MetricsEndpoint"]


class MetricsEndpoint(Endpoint):
    """Figures for Prometheus."""

    name = "metrics"
    prefix = ""

    def routes(self) -> Sequence[BaseRoute]:
        """One route."""
        return [Route("/metrics", _metrics, methods=["GET"])]

    def openapi(self) -> Mapping[str, Any]:
        """What it answers."""
        return fragment(
            Operation(
                method="GET",
                path="/metrics",
                summary="Figures for Prometheus",
                text_types=(CONTENT_TYPE, OPENMETRICS_CONTENT_TYPE),
            )
        )


async def _metrics(request: Request) -> Response:
    accept = ",".join(request.headers.getlist("accept"))
    state = state_of(request)
    # A core answers between two steps: too late for this scrape, in time for the next one.
    state.plugin_states.refresh_soon()
    text, content_type = state.metrics.render(accept)
    return Response(text, headers={"content-type": content_type, "vary": "accept"})
