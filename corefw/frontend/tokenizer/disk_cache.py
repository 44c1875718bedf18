"""Built tokenizers on disk. A cache that can't be read or written only costs time."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from pathlib import Path

import tokenizers

from corefw import env
from corefw.config.regular_file import read_regular_text

__all__ = ["TokenizerCache"]

_log = logging.getLogger(__name__)
_LAYOUT = b"corefw tokenizer cache 1"  # changes whenever building from the same metadata gives something else


class TokenizerCache:
    """``tokenizer.json`` files, one a hash of the bytes that they were built from.

    Args:
        source: the bytes that decide what is built.
        enabled: otherwise nothing is read or written.
    """

    def __init__(self, source: bytes, *, enabled: bool) -> None:
        self._enabled = enabled
        digest = hashlib.sha256(_LAYOUT + source).hexdigest()
        self.path = env.cache_dir() / "tokenizers" / f"{digest[:32]}.json"

    def load(self) -> tokenizers.Tokenizer | None:
        """What was stored, or None: nothing there, or damaged."""
        if not self._enabled:
            return None
        try:
            text = read_regular_text(self.path)
        except (OSError, UnicodeDecodeError):
            return None
        try:
            return tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception
            _log.warning("the cached tokenizer %s is damaged (%s); building it again", self.path, str(error)[:200])
            return None

    def store(self, backend: tokenizers.Tokenizer) -> None:
        """Write it, so that readers see all of it or nothing."""
        if not self._enabled:
            return
        try:
            self._write(backend.to_str())
        except OSError as error:
            _log.warning("the tokenizer can't be cached in %s (%s); going on without", self.path.parent, error)

    def _write(self, text: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self.path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(temporary).replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
