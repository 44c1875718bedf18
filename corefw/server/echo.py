"""Prompts that a completion repeats before its output."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from corefw.frontend.tokenizer.base import Tokenizer

__all__ = ["Echo", "echo_of_ids", "echo_of_text"]


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as it is repeated.

    Attributes:
        text: what the client gets back.
        offsets: where in it each of the prompt's tokens begins.
    """

    text: str
    offsets: list[int]


def echo_of_text(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> Echo:
    """A prompt that came as text is repeated as it came; what the tokenizer put before it has no width."""
    return _echo(text, [tokenizer.token_bytes(token_id) for token_id in ids])


def echo_of_ids(tokenizer: Tokenizer, ids: Sequence[int], *, skip_special_tokens: bool) -> Echo:
    """A prompt that came as ids is decoded like an output."""
    text = tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
    return _echo(
        text, [b"" if skip_special_tokens and tokenizer.is_special(i) else tokenizer.token_bytes(i) for i in ids]
    )


def _echo(text: str, pieces: Sequence[bytes]) -> Echo:
    offsets, whole = _lay_out(pieces)
    # A tokenizer that changes text (normalises it) has no exact places; they stay within the text.
    lead = len(whole) - len(text) if whole.endswith(text) else 0
    return Echo(text, [min(max(0, offset - lead), len(text)) for offset in offsets])


def _lay_out(pieces: Sequence[bytes]) -> tuple[list[int], str]:
    """Where each piece begins in the joined text; a character over several pieces counts with its last one."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offsets, parts, num_chars = [], [], 0
    for piece in pieces:
        offsets.append(num_chars)
        parts.append(decoder.decode(piece))
        num_chars += len(parts[-1])
    return offsets, "".join(parts) + decoder.decode(b"", True)
