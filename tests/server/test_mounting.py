"""Where routes of plugins stand, and what they may not take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from corefw.config.engine_config import ServerConfig
from corefw.errors import ConfigError, PluginError
from corefw.interfaces.endpoint import Endpoint
from corefw.server.app import create_app
from tests.server.serving import builtin_endpoints, make_state, scripted, serving


async def _answer(request: Request) -> Response:
    return Response(f"mine {request.path_params.get('x', '')}")


class Mine(Endpoint):
    """Routes as given."""

    name = "mine"

    def __init__(self, prefix: str | None, *routes: BaseRoute) -> None:
        self.prefix = prefix  # type: ignore[misc]  # of each object, in this test
        self._routes = routes

    def routes(self) -> Sequence[BaseRoute]:
        return self._routes


def test_routes_stand_under_the_plugins_name_or_under_its_prefix() -> None:
    route = Route("/a/{x}", _answer)
    with serving(scripted(), endpoints=[Mine(None, route)]) as server:
        assert server.get("/plugins/mine/a/1").text == "mine 1"
        assert server.get("/a/1").status_code == 404
    with serving(scripted(), endpoints=[Mine("/own", route, Mount("/m", routes=[Route("/in", _answer)]))]) as server:
        assert server.get("/own/a/2").text == "mine 2"
        assert server.get("/own/m/in").text == "mine "


@pytest.mark.parametrize(
    ("route", "clash"),
    [
        (Route("/v1/models", _answer), "GET /v1/models"),
        (Route("/v1/{x}", _answer), "GET /v1/models and /v1/{x}"),
        (Route("/{x:path}", _answer, methods=["POST"]), "POST /v1/completions and /{x:path}"),
        (Route("/{x}/models", _answer), "GET /v1/models and /{x}/models"),
        (Route("/v1/models/{x}", _answer), "GET /v1/models/{model:path} and /v1/models/{x}"),
        (Mount("/v1", routes=[Route("/in", _answer)]), "POST /v1/completions and /v1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_route_that_takes_what_is_the_cores_stops_the_start(route: BaseRoute, clash: str) -> None:
    with pytest.raises(PluginError) as caught:
        create_app(make_state(scripted()), [*builtin_endpoints(), Mine("", route)])
    assert f"and 'mine' both want {clash}; " in str(caught.value)
    assert str(caught.value).endswith("--allow-route-override mine")


@pytest.mark.parametrize(
    "route",
    [
        Route("/v1/{x:int}", _answer),
        Route("/v1/models", _answer, methods=["DELETE"]),
        Route("/v2/{x:path}", _answer),
        Route("/v1/models/{x}/y", _answer, methods=["PUT"]),
    ],
    ids=["another kind of parameter", "another method", "another path", "below, another method"],
)
def test_a_route_beside_those_of_the_core_is_none_of_theirs(route: BaseRoute) -> None:
    with serving(scripted(), endpoints=[Mine("", route)]) as server:
        assert server.get("/v1/models").json()["object"] == "list"


def test_a_permitted_plugin_stands_before_the_core() -> None:
    with serving(
        scripted(), endpoints=[Mine("", Route("/v1/models", _answer))], allow_route_override=("mine",)
    ) as server:
        assert server.get("/v1/models").text == "mine "
        assert server.get("/v1/models/demo").json()["id"] == "demo"


def test_a_permission_for_nobody_stops_the_start_and_names_the_nearest() -> None:
    state = make_state(scripted(), ServerConfig(port=0, allow_route_override=("mien",)))
    with pytest.raises(ConfigError, match=r"--allow-route-override 'mien'.*did you mean mine"):
        create_app(state, [Mine(None)])


def test_two_endpoints_of_one_name_are_refused_since_a_permission_would_be_for_both() -> None:
    with pytest.raises(PluginError, match="two endpoints are called 'mine'"):
        create_app(make_state(scripted()), [Mine("/a"), Mine("/b")])


@pytest.mark.parametrize("name", ["", "a/../b", "{x}", "a b", None])
def test_a_name_that_cannot_be_part_of_a_path_is_refused(name: object) -> None:
    mine = Mine(None, Route("/a", _answer))
    mine.name = name  # type: ignore[misc, assignment]
    with pytest.raises(PluginError, match="test_mounting:Mine is called"):
        create_app(make_state(scripted()), [mine])


def test_an_endpoint_that_fails_to_give_its_routes_is_named() -> None:
    mine = Mine(None)
    mine._routes = None  # type: ignore[assignment]
    with pytest.raises(PluginError, match="'mine' can't give its routes: TypeError"):
        create_app(make_state(scripted()), [mine])


@pytest.mark.parametrize("prefix", ["own", "/own/", "/{x}", 5])
def test_a_prefix_that_cannot_be_one_is_refused(prefix: Any) -> None:
    with pytest.raises(PluginError, match="'mine' declares "):
        create_app(make_state(scripted()), [Mine(prefix, Route("/a", _answer))])
