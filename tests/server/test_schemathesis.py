"""A part of what schemathesis can send, against the scripted server; tests/e2e has the whole."""

from __future__ import annotations

import re
from pathlib import Path

from tests.server.schemathesis_run import MIN_CASES, check_server
from tests.server.serving import scripted, serving


def test_requests_made_from_the_document_get_documented_answers(tmp_path: Path) -> None:
    with serving(scripted("Hello")) as running:
        told = check_server(running.url, tmp_path, "--phases", "examples,coverage,fuzzing", max_examples=3, limit_s=60)
    cases = re.search(r"(\d+) generated, (\d+) passed", told)
    assert cases is not None, told
    assert int(cases[1]) > MIN_CASES
