"""A part of what schemathesis can send, against the scripted server; tests/e2e has the whole."""

from __future__ import annotations

from pathlib import Path

from tests.server.schemathesis_run import check_server
from tests.server.serving import scripted, serving


def test_requests_made_from_the_document_get_documented_answers(tmp_path: Path) -> None:
    with serving(scripted("Hello")) as running:
        num_cases = check_server(running.url, tmp_path, "--phases", "examples,coverage", max_examples=1, limit_s=180)
    assert num_cases > 500
