"""With a key configured nothing answers without it but what says so, however it is spelled."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Sequence

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from corefw.errors import ConfigError
from corefw.interfaces.endpoint import Endpoint
from corefw.server.app import create_app
from tests.server.serving import Running, builtin_endpoints, make_state, scripted, serving

KEYS = ("first-key", "second key")
METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE")


class ThirdParty(Endpoint):
    """A pack's routes, one of them an app of its own."""

    name = "third_party"
    prefix = ""

    def routes(self) -> Sequence[BaseRoute]:
        async def hello(_: Request) -> Response:
            return PlainTextResponse("hello")

        health = Route("/health", hello, methods=["DELETE"])
        return [Route("/third/hello", hello), Mount("/third/app", routes=[Route("/inner", hello)]), health]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(scripted(), endpoints=[ThirdParty()], api_key=KEYS) as running:
        yield running


def status(server: Running, method: str, path: str, headers: Sequence[tuple[str, str]] = ()) -> int:
    """The path goes out as it is written; clients with manners would normalise it."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()


def paths() -> list[str]:
    routes = [route for endpoint in [*builtin_endpoints(), ThirdParty()] for route in endpoint.routes()]
    return sorted({route.path.replace("{model:path}", "demo") for route in routes})  # type: ignore[attr-defined]


def spellings(path: str) -> list[str]:
    encoded = "".join(f"%{ord(c):02x}" for c in path[1:])
    return [
        path, f"/{path}", f"//{path}", f"{path}/", path.upper(), path.replace("/", "/./"), f"/health/..{path}",
        f"/{encoded}", f"{path}?x=/health", f"{path}#/health", f"{path};/health", f"/health%2f..{path}", f"{path}%00",
        f"/health{path}", f"/ping{path}", f"http://x{path}",
    ]  # fmt: skip


@pytest.mark.parametrize("path", [path for path in paths() if path not in ("/health", "/ping")])
def test_no_spelling_and_no_method_gets_past_the_key(server: Running, path: str) -> None:
    for spelling in spellings(path):
        for method in METHODS:
            assert status(server, method, spelling) == 401, (method, spelling)


@pytest.mark.parametrize("path", ["/health", "/ping"])
def test_the_public_paths_are_open_in_exactly_their_own_spelling(server: Running, path: str) -> None:
    assert status(server, "GET", path) == 200
    assert status(server, "HEAD", path) == 200
    for spelling in (f"/{path}", f"{path}/", path.upper(), f"{path}/x", f"{path}%20"):
        assert status(server, "GET", spelling) == 401, spelling


def test_a_public_path_is_open_for_its_owners_methods_alone(server: Running) -> None:
    assert status(server, "DELETE", "/health") == 401
    assert status(server, "DELETE", "/health", [("Authorization", f"Bearer {KEYS[0]}")]) == 200
    assert status(server, "POST", "/ping") == 200


def test_unknown_paths_do_not_show_that_they_are_unknown(server: Running) -> None:
    assert status(server, "GET", "/nothing/here") == 401


@pytest.mark.parametrize("path", [path for path in paths() if "completions" not in path and path != "/third/app"])
def test_every_key_opens_every_route(server: Running, path: str) -> None:
    for key in KEYS:
        assert status(server, "GET", path, [("Authorization", f"Bearer {key}")]) == 200


def test_an_app_mounted_by_a_pack_sits_behind_the_key(server: Running) -> None:
    assert status(server, "GET", "/third/app/inner") == 401
    assert status(server, "GET", "/third/app/inner", [("Authorization", f"bearer {KEYS[0]}")]) == 200


@pytest.mark.parametrize(
    "headers",
    [
        [("Authorization", KEYS[0])],
        [("Authorization", f"Basic {KEYS[0]}")],
        [("Authorization", "Bearer")],
        [("Authorization", "Bearer ")],
        [("Authorization", f"Bearer {KEYS[0]}x")],
        [("Authorization", f"Bearer {KEYS[0][:-1]}")],
        [("Authorization", f"Bearer {KEYS[0].upper()}")],
        [("Authorization", f"Bearer {KEYS[0]}, Bearer x")],
        [("Authorization", "Bearer x"), ("Authorization", f"Bearer {KEYS[0]}")],
        [("Authorization", "Bearer \xff\xfe")],
        [("X-Api-Key", KEYS[0])],
        [("Cookie", f"key={KEYS[0]}")],
    ],
)
def test_what_is_not_a_key_opens_nothing(server: Running, headers: list[tuple[str, str]]) -> None:
    assert status(server, "GET", "/v1/models", headers) == 401


def test_the_refusal_says_what_to_send(server: Running) -> None:
    answer = server.get("/v1/models")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert "Authorization" in answer.json()["error"]["message"]


def test_without_a_key_every_route_is_open() -> None:
    with serving(scripted()) as server:
        assert server.get("/v1/models").status_code == 200


def test_the_key_of_the_environment_counts_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREFW_API_KEY", "from-env")
    with serving(scripted()) as server:
        assert server.get("/v1/models").status_code == 401
        assert server.get("/v1/models", headers={"Authorization": "Bearer from-env"}).status_code == 200


def test_an_empty_key_stops_the_start() -> None:
    from corefw.config.engine_config import ServerConfig

    with pytest.raises(ConfigError, match="empty"):
        create_app(make_state(scripted(), ServerConfig(api_key=("",))), builtin_endpoints())
