"""A prefix: paths are served with it and without it, and neither way gets past the key."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest

from corefw.config.engine_config import ServerConfig
from corefw.errors import ConfigError
from corefw.server.app import check_endpoints, create_app
from tests.server.serving import Running, builtin_endpoints, make_state, scripted, serving
from tests.server.test_auth import ThirdParty

KEY = {"Authorization": "Bearer key"}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(scripted("Hi"), endpoints=[ThirdParty()], root_path="/api/llm", api_key=("key",)) as running:
        yield running


@pytest.mark.parametrize("prefix", ["", "/api/llm"])
def test_a_proxy_may_strip_the_prefix_or_not(server: Running, prefix: str) -> None:
    assert server.get(f"{prefix}/health").status_code == 200
    assert server.get(f"{prefix}/v1/models", headers=KEY).json()["data"][0]["id"] == "demo"
    assert server.get(f"{prefix}/v1/models/demo", headers=KEY).json()["id"] == "demo"
    assert server.get(f"{prefix}/third/app/inner", headers=KEY).text == "hello"


@pytest.mark.parametrize("prefix", ["", "/api/llm", "/api/llm/api/llm", "/api", "/api/llmhealth", "//api/llm"])
def test_no_prefix_opens_what_needs_the_key(server: Running, prefix: str) -> None:
    for path in ("/v1/models", "/metrics", "/third/app/inner", "/", "/nothing", "/api/llm/v1/models"):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("GET", prefix + path)
        assert connection.getresponse().status == 401, prefix + path
        connection.close()


@pytest.mark.parametrize("path", ["/api/llm/api/llm/health", "/api/health", "/api/llmhealth", "/api/llm/health/"])
def test_the_open_paths_are_open_under_the_prefix_alone(server: Running, path: str) -> None:
    assert server.get(path).status_code == 401
    assert server.get(path, headers=KEY).status_code == 404


def test_the_prefix_itself_is_no_route(server: Running) -> None:
    assert server.get("/api/llm", headers=KEY).status_code == 404
    assert server.get("/api/llm/", headers=KEY).status_code == 404


@pytest.mark.parametrize("root_path", ["/v1", "/v1/models", "/health"])
def test_a_prefix_that_would_hide_a_route_stops_the_start(root_path: str) -> None:
    with pytest.raises(ConfigError, match=f"--root-path {root_path} is the beginning of a route"):
        create_app(make_state(scripted(), ServerConfig(root_path=root_path)), builtin_endpoints())
    with pytest.raises(ConfigError, match=f"--root-path {root_path} is the beginning of a route"):
        check_endpoints(builtin_endpoints(), ServerConfig(root_path=root_path))
