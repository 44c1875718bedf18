"""Prompts of exact length, made of one fixed text."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

__all__ = ["Prompts"]

_TEXT = Path(__file__).with_name("text.txt")


class Prompts:
    """Token ids for engines that all get the same ones.

    Args:
        directory: a Hugging Face directory; without ``tokenizer.json`` ids are made up.
    """

    def __init__(self, directory: Path) -> None:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        config = config.get("text_config", config)
        self._vocab_size = int(config["vocab_size"])
        self._bos = config.get("bos_token_id")
        file = directory / "tokenizer.json"
        self._tokenizer = Tokenizer.from_file(str(file)) if file.exists() else None

    @cached_property
    def text(self) -> list[int]:
        """The whole text, as the model expects a text to begin."""
        return [*self._begin(), *self._encode(_TEXT.read_text(encoding="utf-8"))]

    def make(self, num_tokens: int, label: str) -> list[int]:
        """A prompt that begins as no other with another label does, so that nothing of it is in a cache."""
        ids = [*self._begin(), *self._encode(f"{label}. ")]
        text = self._encode(_TEXT.read_text(encoding="utf-8"))
        while len(ids) < num_tokens:
            ids += text
        return ids[:num_tokens]

    def _begin(self) -> list[int]:
        return [self._bos] if isinstance(self._bos, int) else []

    def _encode(self, text: str) -> list[int]:
        if self._tokenizer is None:
            return [3 + byte % (self._vocab_size - 3) for byte in text.encode()]
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids
