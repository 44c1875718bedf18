"""Schemathesis against a running server: what it sends follows from the server's own document."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# Requests that the document allows, and that the server refuses, have no check: fields must fit each other and the
# model's vocabulary, which no schema says.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
)
_CASES = re.compile(r"(\d+) generated, \1 passed")


def check_server(url: str, directory: Path, *flags: str, max_examples: int, limit_s: float) -> int:
    """Run all checks, always with the same requests; returns how many requests there were.

    Args:
        url: of the server.
        directory: for the files that schemathesis leaves behind.
        flags: more flags of ``schemathesis run``.
        max_examples: random requests for each operation, besides those that follow from the document alone.
        limit_s: the run fails when it takes longer.
    """
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--checks", ",".join(CHECKS)]
    command += ["--max-examples", str(max_examples), "--generation-deterministic"]
    # Many of the bodies that are drawn are thrown away, as they break a rule of the schema: slow, but no failure.
    command += ["--suppress-health-check", "all", "--continue-on-failure", "--no-color", *flags]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=limit_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = _CASES.search(done.stdout)
    assert cases is not None, done.stdout
    return int(cases[1])
