"""A hook module: takes words out of every output, also where a word comes in pieces."""

from __future__ import annotations

import re

from corefw.interfaces.hooks.front_end import GenerationRequest, OutputTransform, OutputTransformer
from corefw.sdk.plugins import hookimpl

_WORD = re.compile(r"[A-Za-z]+\Z")


class Redaction(OutputTransform):
    """Replaces each word that begins with a capital letter; a word that may go on is held back."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> str:
        """Whole words."""
        whole = self._held + text
        unfinished = _WORD.search(whole)
        cut = unfinished.start() if unfinished else len(whole)
        self._held = whole[cut:]
        return _redacted(whole[:cut])

    def flush(self) -> str:
        """The last word."""
        return _redacted(self._held)


class Redactor(OutputTransformer):
    """Hides names, so it hides the tokens as well."""

    required = True
    hides_tokens = True

    def begin(self, request: GenerationRequest, index: int) -> OutputTransform:
        """State of one output."""
        return Redaction()


def _redacted(text: str) -> str:
    return re.sub(r"\b[A-Z][A-Za-z]*", "***", text)


@hookimpl
def corefw_output_transformer() -> OutputTransformer:
    """The transformer."""
    return Redactor()
