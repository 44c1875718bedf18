"""Runs commands as an operator does."""

from __future__ import annotations

import os
import subprocess
import sys

__all__ = ["corefw"]


def corefw(*words: str, stdin: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """``corefw WORDS`` in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-m", "corefw.cli.main", *words],
        capture_output=True,
        timeout=120,
        check=False,
        input=stdin.encode(),
        env={**os.environ, **(env or {})},
    )
    # Decoded here: text mode would make line feeds of the carriage returns that a model wrote.
    return subprocess.CompletedProcess(run.args, run.returncode, run.stdout.decode(), run.stderr.decode())
