"""Token ids to text as they come: what has been given out is never taken back."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from corefw.frontend.tokenizer.base import Tokenizer

__all__ = ["Detokenizer", "NoDetokenizer", "make_detokenizer"]

_NEIGHBOURS = 32  # tokens; those that decoders look at are one or two


class Detokenizer(Protocol):
    """The texts of all pushes and of ``flush``, joined, are ``tokenizer.decode(ids, continuation=True)``."""

    def push(self, ids: Sequence[int]) -> str:
        """Text that is certain now; a character whose bytes aren't all there is held back."""
        ...

    def flush(self) -> str:
        """What was held back; an incomplete character is U+FFFD. Nothing may be pushed afterwards."""
        ...


def make_detokenizer(
    tokenizer: Tokenizer, *, skip_special_tokens: bool, spaces_between_special_tokens: bool = True
) -> Detokenizer:
    """The detokeniser that fits the vocabulary; one a sequence.

    Args:
        tokenizer: of the model.
        skip_special_tokens: leave control tokens out.
        spaces_between_special_tokens: where a decoder puts a blank between two control tokens, it stays. Joined bytes
            have none.
    """
    if tokenizer.joins_bytes:
        return _ByteDetokenizer(tokenizer, skip_special_tokens)
    return _DecodingDetokenizer(tokenizer, skip_special_tokens, spaces_between_special_tokens)


class NoDetokenizer:
    """For outputs whose text nobody wants."""

    def push(self, ids: Sequence[int]) -> str:
        """Nothing."""
        del ids
        return ""

    def flush(self) -> str:
        """Nothing."""
        return ""


class _ByteDetokenizer:
    """For vocabularies whose text is the tokens' bytes, joined: any bytes, in any cut."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._is_skipped = tokenizer.is_special if skip_special_tokens else None
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        if len(ids) == 1:  # nearly always
            skips = self._is_skipped is not None and self._is_skipped(ids[0])
            return "" if skips else self._utf8.decode(self._token_bytes(ids[0]))
        if self._is_skipped is not None:
            ids = [token_id for token_id in ids if not self._is_skipped(token_id)]
        return self._utf8.decode(b"".join(map(self._token_bytes, ids)))

    def flush(self) -> str:
        return self._utf8.decode(b"", True)


class _DecodingDetokenizer:
    """For decoders that look at neighbouring tokens: decodes the newest tokens again and gives out what is new.

    Such a decoder may change the end of a text when a token follows (joining words, dropping a blank), so the text of
    the newest token is held back. One that changes text further back can't be streamed exactly; what was given out
    stays.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool, spaces_between_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._joins_special = not (skip_special_tokens or spaces_between_special_tokens)
        self._ids: list[int] = []
        self._num_given = 0  # characters of their text
        self._forget_at = 2 * _NEIGHBOURS

    def push(self, ids: Sequence[int]) -> str:
        if not ids:
            return ""
        self._ids += ids
        text = self._decode(self._ids)
        stable = _common_start(self._decode(self._ids[:-1]), text)
        new = self._give(stable.rstrip("\ufffd"))
        if len(self._ids) >= self._forget_at:
            self._forget(text)
        return new

    def flush(self) -> str:
        return self._give(self._decode(self._ids))

    def _forget(self, text: str) -> None:
        """Keep the newest tokens alone, where they decode to the end of the text and all before it was given out.

        A decoder may treat the first token that has text in its own way (without a blank, say): it must be one of the
        newest, so that it stays the first.
        """
        end = self._decode(self._ids[-_NEIGHBOURS:])
        begin = len(text) - len(end)
        if end and text.endswith(end) and begin <= self._num_given:
            del self._ids[:-_NEIGHBOURS]
            self._num_given -= begin
        self._forget_at = len(self._ids) + _NEIGHBOURS

    def _decode(self, ids: list[int]) -> str:
        text = self._tokenizer.decode(ids, skip_special_tokens=self._skip, continuation=True)
        return self._without_blanks(text, ids) if self._joins_special else text

    def _without_blanks(self, text: str, ids: list[int]) -> str:
        """Take out the blanks that stand between two control tokens that follow each other."""
        for left, right in pairwise(ids):
            if self._tokenizer.is_special(left) and self._tokenizer.is_special(right):
                pair = [self._tokenizer.token_bytes(token_id).decode("utf-8", "replace") for token_id in (left, right)]
                text = text.replace(" ".join(pair), "".join(pair))
        return text

    def _give(self, text: str) -> str:
        new = text[self._num_given :]
        self._num_given = max(self._num_given, len(text))
        return new


def _common_start(first: str, second: str) -> str:
    for i, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return first[:i]
    return min(first, second, key=len)
