"""Asks a process with torch what transformers makes of a model: model classes import torch, which this one may not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import closing
from typing import IO, TYPE_CHECKING, Any

from corefw.errors import PluginError

if TYPE_CHECKING:
    from corefw.interfaces.model import ModelRequest

__all__ = ["inspect_elsewhere"]

_TIMEOUT_S = 300
_TAIL_BYTES = 4096


def inspect_elsewhere(request: ModelRequest) -> dict[str, Any]:
    """``{"refused": reason}`` or ``{"sizes": …}``.

    Raises:
        PluginError: the process failed, or took too long.
    """
    info = request.info
    trusted = ["--trust-remote-code"] if request.trust_remote_code else []
    # -P: neither the current nor the model's directory, often the same, is searched for modules.
    command = [sys.executable, "-P", "-m", "corefw_models_transformers.inspection_process"]
    command += [*trusted, "--", info.files.root, info.architecture, request.dtype]
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as said:
        try:
            status = _run(command, answer, said)
        except subprocess.TimeoutExpired:
            raise PluginError(f"looking at {info.files.root} took more than {_TIMEOUT_S} s") from None
        if status:
            reason = _last_line(said) or f"its process ended with status {status}"
            raise PluginError(f"transformers can't look at {info.files.root}: {reason[:500]}")
        answer.seek(0)
        found: dict[str, Any] = json.load(answer)
        return found


def _run(command: list[str], answer: IO[bytes], said: IO[bytes]) -> int:
    """The child's input ends when this process does, however it does."""
    theirs, ours = os.pipe()
    with closing(os.fdopen(ours, "wb")), os.fdopen(theirs, "rb") as lifeline:
        return subprocess.run(command, stdin=lifeline, stdout=answer, stderr=said, timeout=_TIMEOUT_S).returncode


def _last_line(file: IO[bytes]) -> str:
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - _TAIL_BYTES))
    lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
