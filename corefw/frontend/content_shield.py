"""Keeps the text that clients send from becoming control tokens when it is rendered into a chat template.

Template text and client text reach the tokenizer as one string, so that words are merged across their border as in
training. What tells them apart is a mark that nobody can guess: it is put inside every control token's text that a
client sends, so that the text no longer matches, and is taken out again before tokenising.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from corefw.errors import RequestError
from corefw.frontend.tokenizer.base import Tokenizer

__all__ = ["ContentShield", "random_mark"]

_MARK_CHARS = 12
_PRIVATE_USE = 0xF0000  # plane 15: templates change nothing here, no case, no blanks


def random_mark() -> str:
    """A text that nobody else can have written, and that templates leave as it is."""
    return "".join(chr(_PRIVATE_USE + secrets.randbelow(0x8000)) for _ in range(_MARK_CHARS))


class ContentShield:
    """One rendering's protection. Text without a trace of a control token passes unchanged.

    Args:
        tokenizer: of the model.
        is_open: protect nothing: the text of a control token becomes that token, whoever wrote it.
    """

    def __init__(self, tokenizer: Tokenizer, *, is_open: bool = False) -> None:
        self._tokenizer = tokenizer
        self._is_open = is_open
        self._scanner = tokenizer.special_scanner
        self._mark = random_mark()
        self._end_mark = random_mark()

    def protect(self, value: Any) -> Any:
        """The same plain data with every string in it protected, keys apart."""
        if isinstance(value, str):
            return self._protect_text(value)
        if isinstance(value, Mapping):
            return {key: self.protect(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.protect(item) for item in value]
        return value

    def unmarked(self, rendered: str) -> str:
        """The rendered text as it would be without protection."""
        return rendered.replace(self._mark, "")

    def ended(self, content: str) -> str:
        """Content with its end marked for ``cut_at_end``."""
        return f"{content}{self._end_mark} "

    def cut_at_end(self, rendered: str) -> str:
        """The rendered text up to the marked end. Blanks before it stay unless the template strips them elsewhere, too.

        Raises:
            RequestError: the template leaves the marked content out.
        """
        end = rendered.rfind(self._end_mark)
        if end < 0:
            raise RequestError(
                "the chat template leaves out the final message, so it can't be continued", param="messages"
            )
        text = rendered[:end]
        return text if rendered.startswith(" ", end + len(self._end_mark)) else text.rstrip()

    def encode(self, rendered: str) -> list[int]:
        """Ids of the rendered text: the template's control tokens, and everything else as text."""
        if self._mark not in rendered:
            return self._tokenizer.encode(rendered, add_special_tokens=False, parse_special=True)
        ids: list[int] = []
        pieces = list(self._scanner.split(rendered))
        for i, (text, token_id) in enumerate(pieces):
            if token_id is not None:
                ids.append(token_id)
                continue
            text = self.unmarked(text)
            if i > 0 and pieces[i - 1][1] in self._tokenizer.right_stripping_ids:
                text = text.lstrip()
            if i + 1 < len(pieces) and pieces[i + 1][1] in self._tokenizer.left_stripping_ids:
                text = text.rstrip()
            ids += self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _protect_text(self, text: str) -> str:
        if self._is_open:
            return text
        places = {begin + 1 for begin, _ in self._scanner.overlaps(text)}
        # A control token's text may also be made of the end of this text and what the template puts after it (or the
        # other way round). Templates strip blanks, so the border is that of the stripped text.
        stripped = text.strip()
        reaches_in, reaches_out = self._scanner.borders(stripped)
        begin = len(text) - len(text.lstrip())
        if reaches_in:
            places.add(begin)
        if reaches_out:
            places.add(begin + len(stripped))
        if not places:
            return text
        cuts = [0, *sorted(places), len(text)]
        return self._mark.join(text[cut:end] for cut, end in pairwise(cuts))
