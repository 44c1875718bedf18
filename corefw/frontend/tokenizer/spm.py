"""SentencePiece vocabularies of GGUF files: pairs are merged by the score of the token that they make.

This is not BPE with ranks: equal scores are merged from left to right, a merge needs only its result in the vocabulary,
and what no token covers falls back to bytes.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from corefw.frontend.tokenizer.base import Tokenizer
from corefw.frontend.tokenizer.scanner import TextScanner
from corefw.frontend.tokenizer.token_bytes import SPACE_MARK, byte_fallback_value, spaced_bytes
from corefw.frontend.tokenizer.token_types import TokenType

__all__ = ["SentencePieceTokenizer"]

_MAX_CACHED_CHARS = 32
_MAX_CACHED_WORDS = 16384
_BLANKS = " \t\n\v\f\r"
_SPECIAL = frozenset({TokenType.CONTROL, TokenType.UNKNOWN})


class SentencePieceTokenizer(Tokenizer):
    """Merges by score.

    Args:
        tokens, scores, types: one entry an id.
        bos_id, eos_ids, unknown_id: special tokens, where there are any.
        adds_bos, adds_eos: what ``encode`` puts around a text.
        adds_blank: a blank is put before the text, and before text that follows a control token.
        right_stripping_ids: added tokens that swallow the blanks after them.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        scores: Sequence[float],
        types: Sequence[int],
        *,
        bos_id: int | None,
        eos_ids: tuple[int, ...],
        unknown_id: int | None,
        adds_bos: bool,
        adds_eos: bool,
        adds_blank: bool,
        right_stripping_ids: frozenset[int] = frozenset(),
    ) -> None:
        special = {tokens[i]: i for i, kind in enumerate(types) if kind in _SPECIAL}
        super().__init__(
            vocab_size=len(tokens), bos_id=bos_id, eos_ids=eos_ids, special_texts=special, adds_bos=adds_bos
        )
        self.strips_blank = adds_blank
        self.right_stripping_ids = right_stripping_ids
        self._adds_blank = adds_blank
        self._prefix = [bos_id] if adds_bos and bos_id is not None else []
        self._suffix = [eos_ids[0]] if adds_eos and eos_ids else []
        self._tokens = tokens
        self._types = types
        # Control and byte tokens aren't reached by merging: text must never turn into them.
        unmergeable = _SPECIAL | {TokenType.BYTE}
        self._ids = {
            token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind not in unmergeable
        }
        self._scores = scores
        self._byte_ids = _byte_ids(tokens, types, unknown_id)
        user_defined = {tokens[i]: i for i, kind in enumerate(types) if kind == TokenType.USER_DEFINED}
        self._plain_scanner = TextScanner(user_defined)
        self._scanner = TextScanner({**user_defined, **special})
        self._word_border = _word_border(self._ids)
        self._cached_word = lru_cache(maxsize=_MAX_CACHED_WORDS)(self._merge)

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        ids: list[int] = list(self._prefix) if add_special_tokens else []
        after_token, strips = True, False
        for piece, token_id in (self._scanner if parse_special else self._plain_scanner).split(text):
            if token_id is not None:
                ids.append(token_id)
            elif text_left := piece.lstrip(_BLANKS) if strips else piece:
                self._encode_piece(" " + text_left if self._adds_blank and after_token else text_left, ids)
            after_token = token_id is not None
            strips = token_id in self.right_stripping_ids
        if add_special_tokens:
            ids += self._suffix
        return ids

    def _encode_piece(self, piece: str, ids: list[int]) -> None:
        for word in self._word_border.split(piece.replace(" ", SPACE_MARK)):
            ids += self._cached_word(word) if len(word) <= _MAX_CACHED_CHARS else self._merge(word)

    def _merge(self, word: str) -> tuple[int, ...]:
        """Merge the best pair until none is left; a symbol is named by the index of its first character."""
        ends = list(range(1, len(word) + 1))
        previous = list(range(-1, len(word) - 1))
        alive = [True] * len(word)
        heap: list[tuple[float, int, int, int]] = []

        def offer(left: int, right: int) -> None:
            if left >= 0 and right < len(word):
                token_id = self._ids.get(word[left : ends[right]])
                if token_id is not None:
                    heapq.heappush(heap, (-self._scores[token_id], left, right, ends[right]))

        for i in range(1, len(word)):
            offer(i - 1, i)
        while heap:
            _, left, right, end = heapq.heappop(heap)
            if not (alive[left] and alive[right] and ends[left] == right and ends[right] == end):
                continue
            alive[right] = False
            ends[left] = end
            if end < len(word):
                previous[end] = left
            offer(previous[left], left)
            offer(left, end)
        return tuple(self._symbols(word, ends))

    def _symbols(self, word: str, ends: list[int]) -> list[int]:
        ids: list[int] = []
        begin = 0
        while begin < len(word):
            symbol = word[begin : ends[begin]]
            token_id = self._ids.get(symbol)
            if token_id is not None:
                ids.append(token_id)
            else:
                ids += [found for byte in symbol.encode() if (found := self._byte_ids[byte]) is not None]
            begin = ends[begin]
        return ids

    def _make_token_bytes(self, token_id: int) -> bytes:
        kind = self._types[token_id]
        text = self._tokens[token_id]
        if kind in (TokenType.NORMAL, TokenType.BYTE):
            return spaced_bytes(text) if kind == TokenType.BYTE else text.replace(SPACE_MARK, " ").encode()
        return text.encode()


def _byte_ids(tokens: Sequence[str], types: Sequence[int], unknown_id: int | None) -> list[int | None]:
    found: list[int | None] = [unknown_id] * 256
    for i, kind in enumerate(types):
        if kind == TokenType.BYTE and (value := byte_fallback_value(tokens[i])) is not None:
            found[value] = i
    return found


def _word_border(ids: Mapping[str, int]) -> re.Pattern[str]:
    """Where a text may be cut without changing a merge: before a blank, unless some token goes on across it.

    Merging is quadratic-free but not free; with words as units most of a text comes from the cache.
    """
    crossing = {
        token[i - 1] for token in ids if SPACE_MARK in token for i in range(1, len(token)) if token[i] == SPACE_MARK
    }
    kept = re.escape("".join(sorted(crossing | {SPACE_MARK})))
    return re.compile(f"(?<=[^{kept}])(?={SPACE_MARK})")
