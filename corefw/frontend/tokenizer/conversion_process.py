"""The process that converts a tokenizer: run as a module, with a directory and the file to write."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["main"]


def main(directory: str, target: str) -> int:
    """Write the tokenizer.json that transformers makes of a local directory; runs no code from there."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        print(f"{type(tokenizer).__name__} has no fast form", file=sys.stderr)
        return 1
    Path(target).write_text(backend.to_str(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
