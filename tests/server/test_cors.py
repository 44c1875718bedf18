"""CORS: off unless asked for; preflights need no key, everything else does; errors carry the headers as well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.serving import Running, scripted, serving

PAGE = "https://page.example"
KEY = {"Authorization": "Bearer key"}
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type, x-stainless-os",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    settings: dict[str, Any] = {"allowed_origins": (PAGE, "http://localhost:3000"), "api_key": ("key",)}
    with serving(scripted(), max_body_bytes=1024, **settings) as running:
        yield running


def ask(server: Running, method: str, path: str, headers: dict[str, str], **settings: Any) -> httpx.Response:
    return httpx.request(method, f"{server.url}{path}", headers=headers, timeout=10, **settings)


def test_a_preflight_needs_no_key(server: Running) -> None:
    answer = ask(server, "OPTIONS", "/v1/chat/completions", PREFLIGHT)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == PREFLIGHT["Access-Control-Request-Headers"]
    assert "access-control-allow-credentials" not in answer.headers


def test_a_preflight_says_the_same_of_routes_that_are_not_there(server: Running) -> None:
    there, not_there = (ask(server, "OPTIONS", path, PREFLIGHT) for path in ("/v1/models", "/nothing/here"))
    assert (there.status_code, there.text) == (not_there.status_code, not_there.text)


@pytest.mark.parametrize("left_out", ["Origin", "Access-Control-Request-Method"])
def test_an_options_request_that_is_no_preflight_needs_the_key(server: Running, left_out: str) -> None:
    headers = {name: value for name, value in PREFLIGHT.items() if name != left_out}
    for path in ("/v1/models", "/health/../v1/models", "/metrics", "/nothing"):
        assert ask(server, "OPTIONS", path, headers).status_code == 401
        assert ask(server, "OPTIONS", path, headers | KEY).status_code in (404, 405)


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
def test_the_headers_of_a_preflight_open_nothing_to_other_methods(server: Running, method: str) -> None:
    assert ask(server, method, "/v1/models", PREFLIGHT).status_code == 401


def test_a_preflight_from_elsewhere_is_refused(server: Running) -> None:
    answer = ask(server, "OPTIONS", "/v1/models", PREFLIGHT | {"Origin": "https://evil.example"})
    assert answer.status_code == 400
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("status", "path", "headers", "body"),
    [
        (200, "/v1/completions", KEY, b'{"prompt": "a"}'),
        (400, "/v1/completions", KEY, b"{"),
        (401, "/v1/completions", {}, b"{}"),
        (404, "/nothing", KEY, b"{}"),
        (405, "/v1/models", KEY, b"{}"),
        (413, "/v1/completions", KEY, b" " * 1025),
    ],
)
def test_pages_may_read_answers_and_errors(
    server: Running, status: int, path: str, headers: dict[str, str], body: bytes
) -> None:
    asked = headers | {"Origin": PAGE, "Content-Type": "application/json"}
    answer = ask(server, "POST", path, asked, content=body)
    assert answer.status_code == status
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
    assert "Origin" in answer.headers["vary"]
    from_elsewhere = ask(server, "POST", path, asked | {"Origin": "https://evil.example"}, content=body)
    assert "access-control-allow-origin" not in from_elsewhere.headers


def test_an_error_of_the_server_itself_carries_the_headers(server: Running) -> None:
    def broken(_: Any) -> Any:
        raise ZeroDivisionError

    with serving(scripted(broken), allowed_origins=("*",)) as failing:
        answer = ask(failing, "POST", "/v1/completions", {"Origin": PAGE}, json={"prompt": "a"})
    assert answer.status_code == 500
    assert answer.headers["access-control-allow-origin"] == "*"


def test_credentials_are_allowed_by_name_alone() -> None:
    with serving(scripted(), allowed_origins=(PAGE,), allow_credentials=True) as server:
        for method in ("OPTIONS", "GET"):
            answer = ask(server, method, "/health", PREFLIGHT)
            assert answer.headers["access-control-allow-credentials"] == "true"
            assert answer.headers["access-control-allow-origin"] == PAGE


def test_methods_and_headers_can_be_narrowed() -> None:
    settings: dict[str, Any] = {"allowed_methods": ("GET",), "allowed_headers": ("Authorization",)}
    with serving(scripted(), allowed_origins=("*",), **settings) as server:
        assert ask(server, "OPTIONS", "/v1/models", PREFLIGHT).status_code == 400
        fitting = {"Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "authorization"}
        assert ask(server, "OPTIONS", "/v1/models", PREFLIGHT | fitting).status_code == 200


def test_without_being_asked_for_there_are_no_such_headers() -> None:
    with serving(scripted(), api_key=("key",)) as server:
        assert ask(server, "OPTIONS", "/v1/models", PREFLIGHT).status_code == 401
        answer = ask(server, "GET", "/v1/models", KEY | {"Origin": PAGE})
        assert not [name for name in answer.headers if name.startswith("access-control")]
