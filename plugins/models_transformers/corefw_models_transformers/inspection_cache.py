"""What transformers made of a model, kept on disk: asking again takes seconds. Torch-free."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corefw.interfaces.model import ModelRequest

__all__ = ["load_answer", "store_answer"]


def load_answer(request: ModelRequest) -> dict[str, Any] | None:
    """What was stored for the same configuration and versions; None where there is nothing, or nothing sound."""
    path = _path(request)
    if path is None:
        return None
    try:
        answer = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) and isinstance(answer.get("sizes"), dict) else None


def store_answer(request: ModelRequest, answer: dict[str, Any]) -> None:
    """Keep the answer of a model that can be run; a cache that can't be written only costs time."""
    path = _path(request)
    if path is None or "sizes" not in answer:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:  # readers see all of it or nothing
            (Path(folder) / path.name).write_text(json.dumps(answer), encoding="utf-8")
            (Path(folder) / path.name).replace(path)


def _path(request: ModelRequest) -> Path | None:
    """None where nothing is kept: code of a model may say something else every time."""
    if request.cache_dir is None or request.trust_remote_code:
        return None
    digest = hashlib.sha256()
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("transformers", "torch", "corefw")]
    for part in (sys.version, *versions, request.info.architecture, request.dtype):
        digest.update(part.encode() + b"\0")
    # A configuration may name others beside it for other versions of transformers.
    sources = (*Path(__file__).parent.glob("*.py"), *Path(request.info.files.root).glob("config*.json"))
    for path in sorted(sources, key=lambda path: path.name):
        digest.update(f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return Path(request.cache_dir) / "models_transformers" / f"{digest.hexdigest()[:32]}.json"
