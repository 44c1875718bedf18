"""``/openapi.json``."""

from __future__ import annotations

import corefw
from tests.server.serving import scripted, serving


def test_the_document_is_that_of_this_server() -> None:
    with serving(scripted()) as running:
        document = running.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    assert document["info"]["version"] == corefw.__version__
    assert document["servers"] == [{"url": "/"}]
    assert "/v1/completions" in document["paths"]


def test_the_document_needs_the_key() -> None:
    with serving(scripted(), api_key=("secret",)) as running:
        refused = running.get("/openapi.json")
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
        assert running.get("/openapi.json", headers={"authorization": "Bearer secret"}).status_code == 200
