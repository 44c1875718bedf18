"""``/metrics``."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from corefw.interfaces.endpoint import Endpoint
from corefw.observability.metrics import CONTENT_TYPE
from corefw.server.state import state_of

__all__ = ["MetricsEndpoint"]


class MetricsEndpoint(Endpoint):
    """Figures for Prometheus."""

    name = "metrics"

    def routes(self) -> Sequence[BaseRoute]:
        """One route."""
        return [Route("/metrics", _metrics, methods=["GET"])]


async def _metrics(request: Request) -> Response:
    return Response(state_of(request).metrics.render(), headers={"content-type": CONTENT_TYPE})
