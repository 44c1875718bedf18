"""``/v1/models``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from corefw.interfaces.endpoint import Endpoint
from corefw.server.json_request import json_response
from corefw.server.openapi import Operation, fragment
from corefw.server.protocol.answers import ModelCard, ModelList
from corefw.server.state import ServerState, state_of

__all__ = ["ModelsEndpoint"]


class ModelsEndpoint(Endpoint):
    """Says what is served."""

    name = "openai_models"
    prefix = ""

    def routes(self) -> Sequence[BaseRoute]:
        """The list, and one model by its name (which may have slashes)."""
        return [
            Route("/v1/models", _list, methods=["GET"]),
            Route("/v1/models/{model:path}", _one, methods=["GET"]),
        ]

    def openapi(self) -> Mapping[str, Any]:
        """What they answer."""
        return fragment(
            Operation(method="GET", path="/v1/models", summary="The models that are served", answer=ModelList),
            Operation(
                method="GET",
                path="/v1/models/{model}",
                summary="One of them",
                answer=ModelCard,
                errors={404: "No model of that name is served."},
                parameters={"model": "Its name; slashes in it may be sent as they are."},
            ),
        )


async def _list(request: Request) -> Response:
    state = state_of(request)
    return json_response(ModelList(data=[_card(state, name) for name in state.model_names]))


async def _one(request: Request) -> Response:
    state = state_of(request)
    return json_response(_card(state, state.served_name(request.path_params["model"])))


def _card(state: ServerState, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=int(state.started_s),
        max_model_len=state.engine.plan.max_model_len,
        root=state.config.model.model,
    )
