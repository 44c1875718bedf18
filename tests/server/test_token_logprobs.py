from __future__ import annotations

from corefw.frontend.output_processor import TokenLogprob
from corefw.server.token_logprobs import CompletionLogprobsWriter

SMILE = "🙂".encode()


def _entry(token_id: int, raw: bytes, logprob: float, *top: tuple[int, bytes, float]) -> TokenLogprob:
    def text(data: bytes) -> str:
        return data.decode("utf-8", "replace")

    return TokenLogprob(
        token_id=token_id,
        token=text(raw),
        bytes=raw,
        logprob=logprob,
        rank=1,
        top=[(i, text(data), data, value) for i, data, value in top],
    )


def _bytes_of(token: str) -> bytes:
    """A client's reading of a token."""
    if token.startswith("bytes:"):
        return bytes(int(digits, 16) for digits in token.removeprefix("bytes:").split(r"\x")[1:])
    return token.encode()


def test_parts_of_a_character_stay_apart_and_joined_they_are_the_text() -> None:
    parts = [SMILE[:2], SMILE[2:3], SMILE[3:]]
    others = [(10 + i, part, -1.0 - i) for i, part in enumerate(parts)]
    entries = [_entry(10 + i, part, -1.0 - i, *others) for i, part in enumerate(parts)]
    written = CompletionLogprobsWriter(as_ids=False).write([_entry(1, b"a ", -0.5), *entries])
    assert written.tokens == ["a ", r"bytes:\xf0\x9f", r"bytes:\x99", r"bytes:\x82"]
    assert b"".join(map(_bytes_of, written.tokens)).decode() == "a 🙂"
    for top in written.top_logprobs[1:]:
        assert top == dict(zip(written.tokens[1:], [-1.0, -2.0, -3.0], strict=True))


def test_a_prompt_s_first_token_is_written_like_the_others() -> None:
    writer = CompletionLogprobsWriter(as_ids=False)
    written = writer.write_prompt((10, SMILE[:2]), [None, _entry(11, SMILE[2:], -1.0)], [0, 0])
    assert written.tokens == [r"bytes:\xf0\x9f", r"bytes:\x99\x82"]


def test_of_two_ids_with_one_text_the_more_likely_counts_and_as_ids_both_do() -> None:
    entry = _entry(66, b"A", -2.0, (7, b"A", -0.1), (66, b"A", -2.0))
    assert CompletionLogprobsWriter(as_ids=False).write([entry]).top_logprobs == [{"A": -0.1}]
    written = CompletionLogprobsWriter(as_ids=True).write([entry])
    assert written.top_logprobs == [{"token_id:7": -0.1, "token_id:66": -2.0}]
