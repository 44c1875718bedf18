"""Log-probabilities in the shapes of the API."""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from corefw.server.protocol.chat import ChatLogprobs, ChatTokenLogprob, ChatTopLogprob
from corefw.server.protocol.completions import CompletionLogprobs

if TYPE_CHECKING:
    from corefw.frontend.output_processor import TokenLogprob

__all__ = ["LOGPROB_FLOOR", "CompletionLogprobsWriter", "chat_logprobs"]

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


class CompletionLogprobsWriter:
    """Entries of one choice of a completion; remembers how far its text has come."""

    def __init__(self, *, as_ids: bool) -> None:
        self._as_ids = as_ids
        self._num_chars = 0
        # A character over several tokens counts with its last one, as in the text.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, entries: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """The next entries."""
        return CompletionLogprobs(
            tokens=[_token(entry.token_id, entry.token, self._as_ids) for entry in entries],
            token_logprobs=[_finite(entry.logprob) for entry in entries],
            top_logprobs=[self._top(entry) for entry in entries],
            text_offset=[self._offset(entry.bytes) for entry in entries],
        )

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        top = {_token(i, token, self._as_ids): _finite(logprob) for i, token, _, logprob in entry.top}
        # The chosen token is always there, even where it isn't among the most likely ones.
        top.setdefault(_token(entry.token_id, entry.token, self._as_ids), _finite(entry.logprob))
        return top

    def _offset(self, raw: bytes) -> int:
        offset = self._num_chars
        self._num_chars += len(self._decoder.decode(bytes(raw)))
        return offset


def _token(token_id: int, token: str, as_ids: bool) -> str:
    return f"token_id:{token_id}" if as_ids else token


def _finite(logprob: float) -> float:
    return max(logprob, LOGPROB_FLOOR) if math.isfinite(logprob) else LOGPROB_FLOOR
