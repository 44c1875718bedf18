"""Nobody gets in without a key, and no route is there that wasn't named."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from corefw.sdk.plugins import PluginManager
from corefw.testing.server_process import Server

PATHS = ("/tokenize", "/detokenize", "/tokenizer_info")
NAMES = {"tokenize", "detokenize", "tokenizer_info"}
GROUP = "endpoint_plugins"


def variants(path: str) -> Iterator[str]:
    """Ways to write a path that a server might take for the same."""
    yield from (path, f"{path}/", f"/{path}", path.upper(), f"/.{path}", f"/v1{path}", f"/health/..{path}")
    yield from (f"/%2f{path[1:]}", path.replace("t", "%74", 1), f"{path}?a=b", f"{path};a", f"/health{path}")


@pytest.mark.model
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("header", [None, "Bearer", "sesame", "Basic sesame", "Bearer Sesame", "Bearer sesame2"])
def test_a_route_needs_the_key_however_its_path_is_written(server: Server, path: str, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    body = {"prompt": "a"} if path == "/tokenize" else {"tokens": [1]}
    with httpx.Client(headers=headers) as client:
        for url in (f"{server.url}{variant}" for variant in variants(path)):
            answers = [client.request(method, url) for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE")]
            for answer in (*answers, client.post(url, json=body)):
                assert answer.status_code == 401, url


@pytest.mark.model
@pytest.mark.parametrize("path", PATHS)
def test_with_the_key_a_path_is_served_as_it_is_written_alone(server: Server, client: httpx.Client, path: str) -> None:
    method, body = ("GET", None) if path == "/tokenizer_info" else ("POST", {})
    expected = 200 if path == "/tokenizer_info" else 400
    assert client.request(method, path, json=body).status_code == expected
    for variant in (f"{path}/", f"/{path}", path.upper()):
        assert client.request(method, f"{server.url}{variant}", json=body).status_code == 404


@pytest.mark.model
def test_the_document_of_the_api_has_the_routes(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/tokenize": "post", "/detokenize": "post", "/tokenizer_info": "get"}.items() <= {
        path: next(iter(methods)) for path, methods in paths.items()
    }.items()


def test_no_route_is_there_by_default() -> None:
    assert not NAMES & set(PluginManager.discover().names(GROUP))


@pytest.mark.parametrize("name", sorted(NAMES))
def test_each_route_is_allowed_by_its_name_alone(name: str) -> None:
    manager = PluginManager.discover(f"+{name}")
    assert NAMES & set(manager.names(GROUP)) == {name}
    assert [route.path for route in manager.get(GROUP, name)().routes()] == [f"/{name}"]
