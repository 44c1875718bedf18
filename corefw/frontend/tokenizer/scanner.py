"""Finds added tokens in text: leftmost first, the longest at each place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property

__all__ = ["TextScanner"]


class TextScanner:
    """Searches for many fixed texts at once. Immutable, so any thread may use it.

    An alternation of thousands of texts would try each at every place; here a place is only looked at when its first
    character begins some text, and then one dictionary access a distinct length decides.
    """

    def __init__(self, texts: Mapping[str, int]) -> None:
        self._ids = {text: token_id for text, token_id in texts.items() if text}
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        firsts = "".join(map(re.escape, self._lengths))
        self._first = re.compile(f"[{firsts}]") if firsts else None

    def find(self, text: str, start: int = 0) -> tuple[int, int, int] | None:
        """The first match from ``start`` on: (begin, end, token id)."""
        if self._first is None:
            return None
        for place in self._first.finditer(text, start):
            begin = place.start()
            for length in self._lengths[text[begin]]:
                token_id = self._ids.get(text[begin : begin + length])
                if token_id is not None:
                    return begin, begin + length, token_id
        return None

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """The text in order, as (plain text, None) and (text of a token, its id); nothing is empty."""
        position = 0
        while (match := self.find(text, position)) is not None:
            begin, end, token_id = match
            if begin > position:
                yield text[position:begin], None
            yield text[begin:end], token_id
            position = end
        if position < len(text):
            yield text[position:], None

    def overlaps(self, text: str) -> Iterator[tuple[int, int]]:
        """Every place where a match begins, also inside another one: (begin, end of the longest)."""
        position = 0
        while (match := self.find(text, position)) is not None:
            yield match[0], match[1]
            position = match[0] + 1

    def borders(self, text: str) -> tuple[bool, bool]:
        """Whether a searched text could reach into this one from before it, and out of it at its end."""
        heads, tails = self._parts
        longest = min(len(text), max((len(known) for known in self._ids), default=0))
        reaches_in = any(text[:k] in tails for k in range(1, longest + 1))
        reaches_out = any(text[-k:] in heads for k in range(1, longest + 1))
        return reaches_in, reaches_out

    @cached_property
    def _parts(self) -> tuple[frozenset[str], frozenset[str]]:
        """Every proper head and every proper tail of the searched texts."""
        heads = frozenset(text[:i] for text in self._ids for i in range(1, len(text)))
        tails = frozenset(text[i:] for text in self._ids for i in range(1, len(text)))
        return heads, tails
