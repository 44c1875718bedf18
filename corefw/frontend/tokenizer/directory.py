"""Tokenizers from a tokenizer.json, alone or with the files that lie beside it, or from other vocabulary files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from corefw.config.regular_file import read_regular_text
from corefw.errors import ConfigError
from corefw.frontend.tokenizer.backed import BackedTokenizer
from corefw.frontend.tokenizer.base import Tokenizer
from corefw.frontend.tokenizer.conversion import convert, vocabulary_files

__all__ = ["read_json", "tokenizer_from_path"]

_NAME = "tokenizer.json"


def tokenizer_from_path(
    path: Path, *, default_bos_id: int | None, default_eos_ids: tuple[int, ...], keep_converted: bool = True
) -> Tokenizer:
    """The tokenizer of a directory or of a tokenizer.json.

    Args:
        path: either.
        default_bos_id, default_eos_ids: used where the directory names no such token.
        keep_converted: cache the tokenizer of a directory that has a vocabulary in another form.

    Raises:
        ConfigError: nothing there that can be read; names the remedy.
    """
    directory = path if path.is_dir() else path.parent
    settings = read_json(directory / "tokenizer_config.json")
    if path.is_dir() and not (path / _NAME).is_file() and vocabulary_files(path):
        backend = convert(path, settings, keep=keep_converted)
    else:
        backend = _read(path / _NAME if path.is_dir() else path)
    bos_id = _named_id(backend, settings.get("bos_token"))
    eos_id = _named_id(backend, settings.get("eos_token"))
    return BackedTokenizer(
        backend,
        bos_id=default_bos_id if bos_id is None else bos_id,
        eos_ids=default_eos_ids if eos_id is None else (eos_id,),
    )


def _read(file: Path) -> tokenizers.Tokenizer:
    if not file.is_file():
        raise ConfigError(f"no tokenizer at {file}; name a directory with {_NAME}, or such a file, with --tokenizer")
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise ConfigError(f"{file} can't be read as a tokenizer ({str(error)[:200]}); fetch it again") from error


def read_json(path: Path) -> dict[str, Any]:
    """An object from a file; empty when there is no such file.

    Raises:
        ConfigError: the file is there, but isn't a JSON object.
    """
    try:
        value = json.loads(read_regular_text(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} can't be read ({str(error)[:200]}); fetch it again") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} isn't a JSON object; fetch it again")
    return value


def _named_id(backend: tokenizers.Tokenizer, token: Any) -> int | None:
    """Id of a token given as text or as an object with its text."""
    text = token.get("content") if isinstance(token, dict) else token
    token_id: int | None = backend.token_to_id(text) if isinstance(text, str) else None
    return token_id
