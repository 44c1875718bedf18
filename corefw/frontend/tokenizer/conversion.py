"""Tokenizers of directories without a tokenizer.json: transformers converts them, once, in a process of its own.

transformers imports torch, which the front end must not; and its result is a tokenizer.json, which can be kept.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from corefw.errors import ConfigError
from corefw.frontend.tokenizer.disk_cache import TokenizerCache

__all__ = ["convert", "vocabulary_files"]

_VOCABULARIES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt")
_BESIDE = ("merges.txt", "added_tokens.json", "special_tokens_map.json", "tokenizer_config.json", "config.json")
_REMEDY = "save the model's tokenizer.json beside it, or name one with --tokenizer"
_TIMEOUT_S = 300


def vocabulary_files(directory: Path) -> tuple[Path, ...]:
    """The files that a tokenizer can be made from, with those that say how; empty when there is no vocabulary."""
    if not any((directory / name).is_file() for name in _VOCABULARIES):
        return ()
    return tuple(path for name in (*_VOCABULARIES, *_BESIDE) if (path := directory / name).is_file())


def convert(directory: Path, settings: Mapping[str, Any], *, keep: bool) -> tokenizers.Tokenizer:
    """The tokenizer of a directory that has a vocabulary in another form.

    Args:
        directory: has ``vocabulary_files``.
        settings: its tokenizer_config.json.
        keep: store the result in the cache, and take it from there.

    Raises:
        ConfigError: the tokenizer is code, transformers is missing, or it can't convert this one; names the remedy.
    """
    auto_map = settings.get("auto_map")
    if isinstance(auto_map, Mapping) and "AutoTokenizer" in auto_map:
        raise ConfigError(
            f"{directory}: its tokenizer is code that came with the model (auto_map in tokenizer_config.json), and "
            f"such code is never run; {_REMEDY}"
        )
    try:
        version = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(
            f"{directory}: has no tokenizer.json; transformers can make one of its vocabulary, "
            f"pip install 'corefw[transformers]'; or {_REMEDY}"
        ) from None
    cache = TokenizerCache(_source(directory, version), enabled=keep)
    backend = cache.load()
    if backend is None:
        backend = _convert(directory)
        cache.store(backend)
    return backend


def _source(directory: Path, version: str) -> bytes:
    """All that decides the result."""
    parts = [b"transformers", version.encode()]
    for path in vocabulary_files(directory):
        content = path.read_bytes()
        parts += [path.name.encode(), str(len(content)).encode(), content]
    return b"\0".join(parts)


def _convert(directory: Path) -> tokenizers.Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "tokenizer.json"
        # -P: neither the current nor the model's directory is searched for modules.
        command = [
            sys.executable,
            "-P",
            "-m",
            "corefw.frontend.tokenizer.conversion_process",
            str(directory),
            str(target),
        ]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise ConfigError(f"{directory}: converting its tokenizer took over {_TIMEOUT_S} s; {_REMEDY}") from None
        if done.returncode or not target.is_file():
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            reason = lines[-1][:300] if lines else f"status {done.returncode}"
            raise ConfigError(
                f"{directory}: transformers can't make a tokenizer.json of its vocabulary ({reason}); "
                f"is corefw[transformers] installed whole? Else {_REMEDY}"
            )
        return tokenizers.Tokenizer.from_file(str(target))
