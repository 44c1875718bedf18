"""Log-probabilities in the shapes of the API."""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from corefw.messages.sampling import ALL_LOGPROBS
from corefw.server.protocol.answers import PromptLogprobsBody, PromptTokenLogprob
from corefw.server.protocol.chat import ChatLogprobs, ChatTokenLogprob, ChatTopLogprob
from corefw.server.protocol.completions import CompletionLogprobs

if TYPE_CHECKING:
    from corefw.frontend.output_processor import TokenLogprob

__all__ = ["LOGPROB_FLOOR", "CompletionLogprobsWriter", "chat_logprobs", "prompt_logprobs"]

# JSON has no infinity; the API's clients know this value as "impossible".
LOGPROB_FLOOR = -9999.0


def chat_logprobs(entries: Sequence[TokenLogprob], *, as_ids: bool) -> ChatLogprobs:
    """Entries of a chat answer; with ``as_ids`` a token is written ``token_id:N``."""
    return ChatLogprobs(
        content=[
            ChatTokenLogprob(
                token=_token(entry.token_id, entry.token, as_ids),
                logprob=_finite(entry.logprob),
                bytes=list(entry.bytes),
                top_logprobs=[
                    ChatTopLogprob(token=_token(i, token, as_ids), logprob=_finite(logprob), bytes=list(raw))
                    for i, token, raw, logprob in entry.top
                ],
            )
            for entry in entries
        ]
    )


def prompt_logprobs(entries: Sequence[TokenLogprob | None], num_top: int) -> PromptLogprobsBody:
    """Entries of a prompt, each with so many (-1: all) of the most likely tokens."""
    return [None if entry is None else _of_position(entry, num_top) for entry in entries]


def _of_position(entry: TokenLogprob, num_top: int) -> dict[str, PromptTokenLogprob]:
    top = entry.top if num_top < 0 else entry.top[:num_top]
    own = (entry.rank, entry.token_id, entry.token, entry.logprob)
    ranked = [(rank, i, token, logprob) for rank, (i, token, _, logprob) in enumerate(top, start=1)]
    return {
        str(i): PromptTokenLogprob(logprob=_finite(logprob), rank=rank, decoded_token=token)
        for rank, i, token, logprob in (*ranked, own)
    }


class CompletionLogprobsWriter:
    """Entries of one choice of a completion; remembers how far its text has come.

    Args:
        as_ids: write a token as ``token_id:N``; without it, a part of a character is ``bytes:\\xf0\\x9f``.
        num_chars: length of the text before the first entry.
        is_hidden: tells tokens that the text leaves out, if there can be any.
        num_top: so many (-1: all) of the most likely tokens are written, and the chosen one.
    """

    def __init__(
        self,
        *,
        as_ids: bool,
        num_chars: int = 0,
        is_hidden: Callable[[int], bool] | None = None,
        num_top: int = ALL_LOGPROBS,
    ) -> None:
        self._num_top = num_top
        self._as_ids = as_ids
        self._num_chars = num_chars
        self._is_hidden = is_hidden
        # A character over several tokens counts with its last one, as in the text.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write_prompt(
        self, first: tuple[int, bytes], entries: Sequence[TokenLogprob | None], offsets: Sequence[int]
    ) -> CompletionLogprobs:
        """An echoed prompt: id and bytes of its first token, which has no entry, the others' entries, all offsets."""
        known = [entry for entry in entries if entry is not None]
        return CompletionLogprobs(
            tokens=[self._name(*first), *(self._name(entry.token_id, entry.bytes) for entry in known)],
            token_logprobs=[None, *(_finite(entry.logprob) for entry in known)],
            top_logprobs=[None, *map(self._top, known)],
            text_offset=list(offsets),
        )

    def write(self, entries: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """The next entries."""
        return CompletionLogprobs(
            tokens=[self._name(entry.token_id, entry.bytes) for entry in entries],
            token_logprobs=[_finite(entry.logprob) for entry in entries],
            top_logprobs=[self._top(entry) for entry in entries],
            text_offset=[self._offset(entry) for entry in entries],
        )

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        shown = entry.top if self._num_top == ALL_LOGPROBS else entry.top[: self._num_top]
        top: dict[str, float] = {}
        # The chosen token is always there, even where it isn't among the most likely ones.
        for token_id, raw, logprob in (*((i, raw, p) for i, _, raw, p in shown), _chosen(entry)):
            # They fall, so of two ids with one text the more likely counts.
            top.setdefault(self._name(token_id, raw), _finite(logprob))
        return top

    def _name(self, token_id: int, raw: bytes) -> str:
        """A token as text. Parts of characters would all read alike, so they show their bytes, as OpenAI's do."""
        if self._as_ids:
            return _as_id(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _offset(self, entry: TokenLogprob) -> int:
        offset = self._num_chars
        if self._is_hidden is None or not self._is_hidden(entry.token_id):
            self._num_chars += len(self._decoder.decode(bytes(entry.bytes)))
        return offset


def _token(token_id: int, token: str, as_ids: bool) -> str:
    return _as_id(token_id) if as_ids else token


def _as_id(token_id: int) -> str:
    return f"token_id:{token_id}"


def _chosen(entry: TokenLogprob) -> tuple[int, bytes, float]:
    return entry.token_id, entry.bytes, entry.logprob


def _finite(logprob: float) -> float:
    return max(logprob, LOGPROB_FLOOR) if math.isfinite(logprob) else LOGPROB_FLOOR
