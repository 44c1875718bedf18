"""Token ids to text as they come: what has been given out is never taken back."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from corefw.frontend.tokenizer.base import Tokenizer

__all__ = ["Detokenizer", "make_detokenizer"]


class Detokenizer(Protocol):
    """The texts of all pushes and of ``flush``, joined, are ``tokenizer.decode(ids, continuation=True)``."""

    def push(self, ids: Sequence[int]) -> str:
        """Text that is certain now; a character whose bytes aren't all there is held back."""
        ...

    def flush(self) -> str:
        """What was held back; an incomplete character is U+FFFD. Nothing may be pushed afterwards."""
        ...


def make_detokenizer(tokenizer: Tokenizer, *, skip_special_tokens: bool) -> Detokenizer:
    """The detokeniser that fits the vocabulary; one a sequence."""
    if tokenizer.joins_bytes:
        return _ByteDetokenizer(tokenizer, skip_special_tokens)
    return _DecodingDetokenizer(tokenizer, skip_special_tokens)


class _ByteDetokenizer:
    """For vocabularies whose text is the tokens' bytes, joined: any bytes, in any cut."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._is_skipped = tokenizer.is_special if skip_special_tokens else None
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        if self._is_skipped is not None:
            ids = [token_id for token_id in ids if not self._is_skipped(token_id)]
        return self._utf8.decode(b"".join(map(self._token_bytes, ids)))

    def flush(self) -> str:
        return self._utf8.decode(b"", True)


class _DecodingDetokenizer:
    """For decoders that look at neighbouring tokens: decodes everything again and gives out what is new.

    Such a decoder may change the end of a text when a token follows (joining words, dropping a blank), so the text of
    the newest token is held back. One that changes text further back can't be streamed exactly; what was given out
    stays.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids: list[int] = []
        self._given = ""

    def push(self, ids: Sequence[int]) -> str:
        if not ids:
            return ""
        self._ids += ids
        stable = _common_start(self._decode(self._ids[:-1]), self._decode(self._ids))
        return self._give(stable.rstrip("\ufffd"))

    def flush(self) -> str:
        return self._give(self._decode(self._ids))

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip, continuation=True)

    def _give(self, text: str) -> str:
        new = text[len(self._given) :]
        self._given += new
        return new


def _common_start(first: str, second: str) -> str:
    for i, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return first[:i]
    return min(first, second, key=len)
