"""``/docs``."""

from __future__ import annotations

from corefw.server.openapi_page import CONTENT_SECURITY_POLICY
from tests.server.serving import scripted, serving


def test_the_page_comes_with_a_strict_policy() -> None:
    with serving(scripted()) as running:
        answer = running.get("/docs")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "/v1/chat/completions" in answer.text


def test_the_page_needs_the_key() -> None:
    with serving(scripted(), api_key=("secret",)) as running:
        assert running.get("/docs").status_code == 401
        answer = running.get("/docs", headers={"authorization": "Bearer secret"})
    assert answer.status_code == 200
    assert "secret" not in answer.text
