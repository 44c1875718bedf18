"""The files: contents behind their hash, so that a damaged one shows."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

__all__ = ["Store"]

_DIGEST_BYTES = 32


class Store:
    """The blocks of one layout.

    Args:
        root: folder of all layouts.
        fingerprint: of this one.
    """

    def __init__(self, root: str, fingerprint: str) -> None:
        self._folder = Path(root) / fingerprint
        self._folder.mkdir(parents=True, exist_ok=True)

    def has(self, key: str) -> bool:
        """Whether there is a file; its contents may still be damaged."""
        return self._path(key).exists()

    def write(self, key: str, contents: bytes) -> None:
        """Write a block, whole or not at all."""
        path = self._path(key)
        partial = path.with_suffix(f".{os.getpid()}.part")
        partial.write_bytes(hashlib.sha256(contents).digest() + contents)
        partial.replace(path)

    def read(self, key: str, num_bytes: int) -> bytes | None:
        """A block's contents; None when it is gone or damaged."""
        try:
            raw = self._path(key).read_bytes()
        except OSError:
            return None
        digest, contents = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
        is_whole = len(contents) == num_bytes and hashlib.sha256(contents).digest() == digest
        if not is_whole:
            self._path(key).unlink(missing_ok=True)  # the next request doesn't count on it
            return None
        return contents

    def clear(self) -> None:
        """Remove all blocks."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.kv"
