from __future__ import annotations

import pytest

from corefw.frontend.tokenizer.base import Tokenizer
from corefw.server.echo import echo_of_ids, echo_of_text
from tests.frontend.vocabularies import END, byte_level, sentence_piece


def _pieces(text: str, offsets: list[int]) -> list[str]:
    return [text[start:end] for start, end in zip(offsets, [*offsets[1:], len(text)], strict=True)]


@pytest.mark.parametrize("tokenizer", [byte_level(), sentence_piece()], ids=["bytes", "sentence piece"])
@pytest.mark.parametrize("text", ["hello world", " hello", "wörld 🙂!", "a\n\nb"])
def test_a_texts_tokens_cover_it_and_what_was_put_before_it_has_no_width(tokenizer: Tokenizer, text: str) -> None:
    ids = [1, *tokenizer.encode(text)]
    echo = echo_of_text(tokenizer, text, ids)
    assert echo.text == text
    pieces = _pieces(text, echo.offsets)
    assert pieces[0] == ""
    assert "".join(pieces) == text


def test_ids_are_repeated_like_an_output() -> None:
    tokenizer = byte_level()
    ids = [END, *tokenizer.encode("hello world")]
    assert echo_of_ids(tokenizer, ids, skip_special_tokens=True).text == "hello world"
    shown = echo_of_ids(tokenizer, ids, skip_special_tokens=False)
    assert _pieces(shown.text, shown.offsets) == ["<|im_end|>", "hello", " world"]
