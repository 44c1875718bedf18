"""What every tokenizer can do, whatever it was read from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

from corefw.frontend.tokenizer.scanner import TextScanner

__all__ = ["Tokenizer"]


class Tokenizer(ABC):
    """Text to token ids and back. Every method may be called from any thread.

    Attributes:
        vocab_size: number of ids; every id below it can be asked for.
        bos_id: begin token, if there is one.
        eos_ids: end tokens that the vocabulary itself names.
        special_texts: text of each control token (those that ``parse_special`` recognises), with its id.
        adds_bos: whether ``encode`` begins with ``bos_id`` when special tokens are added.
        joins_bytes: text is the tokens' bytes, joined; false for decoders that look at neighbouring tokens.
        strips_blank: a text's first blank was put there by the tokenizer and isn't part of the text.
        left_stripping_ids, right_stripping_ids: control tokens that swallow the blanks before or after them.
    """

    joins_bytes = True
    strips_blank = False
    left_stripping_ids: frozenset[int] = frozenset()
    right_stripping_ids: frozenset[int] = frozenset()

    def __init__(
        self,
        *,
        vocab_size: int,
        bos_id: int | None,
        eos_ids: tuple[int, ...],
        special_texts: dict[str, int],
        adds_bos: bool,
    ) -> None:
        self.vocab_size = vocab_size
        self.bos_id = bos_id
        self.eos_ids = eos_ids
        self.special_texts = special_texts
        self.adds_bos = adds_bos
        self._special_ids = frozenset(special_texts.values())
        self._bytes: list[bytes | None] = [None] * vocab_size

    @abstractmethod
    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text.

        Args:
            text: without lone surrogates.
            add_special_tokens: put the begin (and end) token around it where the model wants them.
            parse_special: the text of a control token becomes that token; otherwise it is text like any other.
        """

    @abstractmethod
    def _make_token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token below ``vocab_size``; called once a token."""

    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes of any token, control tokens included; nothing for an id outside the vocabulary."""
        if not 0 <= token_id < self.vocab_size:
            return b""
        found = self._bytes[token_id]
        if found is None:
            found = self._bytes[token_id] = self._make_token_bytes(token_id)
        return found

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control token, left out of output text."""
        return token_id in self._special_ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True, continuation: bool = False) -> str:
        """Text of token ids; bytes that aren't UTF-8 become U+FFFD, ids outside the vocabulary nothing.

        Args:
            ids: any ids.
            skip_special_tokens: leave control tokens out.
            continuation: the ids go on from other text, so a leading blank belongs to it.
        """
        if skip_special_tokens:
            ids = [token_id for token_id in ids if token_id not in self._special_ids]
        raw = b"".join(map(self.token_bytes, ids))
        if self.strips_blank and not continuation:
            raw = raw.removeprefix(b" ")
        return raw.decode("utf-8", "replace")

    @cached_property
    def special_scanner(self) -> TextScanner:
        """Finds control tokens in text."""
        return TextScanner(self.special_texts)

    @cached_property
    def longest_token_bytes(self) -> int:
        """Bytes of the longest token, at least 1."""
        return max(1, *(len(self.token_bytes(token_id)) for token_id in range(self.vocab_size)))
