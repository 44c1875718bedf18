"""Putting endpoints together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from corefw.errors import PluginError
from corefw.interfaces.endpoint import Endpoint
from corefw.interfaces.server_state import ServerState
from corefw.server.app import create_app
from tests.server.serving import builtin_endpoints, make_state, scripted, serving


async def _answer(_: Request) -> Response:
    return Response("mine")


class Clashing(Endpoint):
    name = "clashing"
    prefix = ""

    def routes(self) -> Sequence[BaseRoute]:
        return [Route("/v1/models", _answer)]


class OtherMethod(Endpoint):
    name = "other_method"
    prefix = ""

    def routes(self) -> Sequence[BaseRoute]:
        return [Route("/v1/models", _answer, methods=["POST"])]


class Open(Endpoint):
    name = "open"
    prefix = ""
    public_paths = frozenset({"/open"})

    def routes(self) -> Sequence[BaseRoute]:
        return [Route("/open", _answer)]


class Embedding(Endpoint):
    name = "embedding"
    prefix = ""
    required_tasks = frozenset({"embed", "score"})

    def routes(self) -> Sequence[BaseRoute]:
        return [Route("/v1/embeddings", _answer)]


class Failing(Endpoint):
    name = "failing"
    prefix = ""

    def routes(self) -> Sequence[BaseRoute]:
        async def fail(_: Request) -> Response:
            raise KeyError("secret detail")

        async def leave(_: Request) -> Response:
            raise SystemExit(3)

        class Silent:
            async def __call__(self, *_: object) -> None:
                pass

        return [Route("/fail", fail), Route("/leave", leave), Route("/silent", Silent())]


class Living(Endpoint):
    name = "living"
    prefix = ""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def routes(self) -> Sequence[BaseRoute]:
        return []

    async def startup(self, state: ServerState) -> None:
        self.seen.append(state.model_names)

    async def shutdown(self) -> None:
        self.seen.append("shutdown")


def test_two_endpoints_for_one_route_are_refused_by_name() -> None:
    with pytest.raises(PluginError, match="'openai_models' and 'clashing' both want GET /v1/models"):
        create_app(make_state(scripted()), [*builtin_endpoints(), Clashing()])


def test_two_methods_of_one_path_may_have_two_owners() -> None:
    with serving(scripted(), endpoints=[OtherMethod()]) as server:
        assert server.get("/v1/models").json()["object"] == "list"
        assert server.post("models", {}).text == "mine"


def test_public_paths_of_a_pack_are_refused() -> None:
    with pytest.raises(PluginError, match="'open' declares public paths"):
        create_app(make_state(scripted()), [Open()])


def test_an_endpoint_for_a_task_that_the_model_cannot_do_is_left_out() -> None:
    with serving(scripted(), endpoints=[Embedding()]) as server:
        assert server.get("/v1/embeddings").status_code == 404


def test_endpoints_are_started_before_requests_and_shut_down_at_the_end() -> None:
    living = Living()
    with serving(scripted(), endpoints=[living]):
        assert living.seen == [("demo",)]
    assert living.seen == [("demo",), "shutdown"]


def test_an_unexpected_failure_shows_an_id_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    with serving(scripted(), endpoints=[Failing()]) as server:
        answer = server.get("/fail", headers={"x-request-id": "abc"})
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "abc" in answer.json()["error"]["message"]
    assert "secret" not in answer.text
    assert "KeyError" not in answer.text
    assert [record.exc_info is not None for record in caplog.records if "abc" in record.getMessage()] == [True]


def test_a_handler_that_asks_the_process_to_end_or_answers_nothing_fails_alone() -> None:
    with serving(scripted(), endpoints=[Failing()]) as server:
        assert server.get("/leave").status_code == 500
        assert server.get("/silent").json()["error"]["type"] == "server_error"
        assert server.get("/health").status_code == 200


def test_unknown_routes_and_methods_are_answered_in_the_shape_of_the_api() -> None:
    with serving(scripted()) as server:
        missing = server.get("/v2/completions")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
        assert "/openapi.json" in missing.json()["error"]["message"]
        wrong = server.get("/v1/completions")
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
        assert wrong.headers["allow"] == "POST"
        assert server.get("/v1/models/").status_code == 404
