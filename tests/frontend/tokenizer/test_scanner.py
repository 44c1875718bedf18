from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.frontend.tokenizer.scanner import TextScanner

TEXTS = st.text("ab<|", max_size=14)
WORDS = st.lists(st.text("ab<|", min_size=1, max_size=4), max_size=5, unique=True)


def reference(words: list[str], text: str) -> list[tuple[str, int | None]]:
    """Leftmost, then longest, one character at a time."""
    pieces: list[tuple[str, int | None]] = []
    while text:
        found = max((word for word in words if text.startswith(word)), key=len, default=None)
        if found is not None:
            pieces.append((found, words.index(found)))
        elif pieces and pieces[-1][1] is None:
            pieces[-1] = (pieces[-1][0] + text[0], None)
        else:
            pieces.append((text[0], None))
        text = text[len(found or text[0]) :]
    return pieces


@given(words=WORDS, text=TEXTS)
@settings(deadline=None, derandomize=True, max_examples=300)
def test_a_text_is_cut_at_the_leftmost_longest_matches(words: list[str], text: str) -> None:
    assert list(TextScanner({word: i for i, word in enumerate(words)}).split(text)) == reference(words, text)


@given(words=WORDS, text=TEXTS, other=TEXTS)
@settings(deadline=None, derandomize=True, max_examples=300)
def test_a_match_across_the_border_of_two_texts_is_foreseen(words: list[str], text: str, other: str) -> None:
    scanner = TextScanner({word: i for i, word in enumerate(words)})
    whole, border = text + other, len(text)
    crossed = any(
        whole.startswith(word, begin) and begin < border < begin + len(word)
        for word in words
        for begin in range(len(whole))
    )
    if crossed:
        assert scanner.borders(text)[1]
        assert scanner.borders(other)[0]
