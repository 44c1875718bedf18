from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from corefw.config.engine_config import FrontendConfig, ModelConfig
from corefw.frontend.detokenizer import make_detokenizer
from corefw.frontend.renderer import Renderer
from corefw.frontend.tokenizer import load_tokenizer
from corefw.frontend.tokenizer.backed import BackedTokenizer
from corefw.frontend.tokenizer.base import Tokenizer
from tests.frontend.tokenizer.test_load import word_pieces
from tests.frontend.vocabularies import END, byte_level, model_info, sentence_piece

BYTE_LEVEL = byte_level()
SENTENCE_PIECE = sentence_piece()
# Ids beyond the vocabulary too; and often bytes, so that characters get cut and broken.
IDS = st.lists(st.integers(0, 300) | st.integers(60, 261), max_size=40)


def stream(tokenizer: Tokenizer, chunks: list[list[int]], *, skip: bool = True) -> list[str]:
    detokenizer = make_detokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.push(chunk) for chunk in chunks), detokenizer.flush()]


@st.composite
def chunked(draw: st.DrawFn) -> list[list[int]]:
    ids = draw(IDS)
    cuts = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    return [ids[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCE_PIECE], ids=["byte-level", "SentencePiece"])
@given(chunks=chunked(), skip=st.booleans())
@settings(deadline=None, derandomize=True, max_examples=300)
def test_streamed_text_is_the_text_at_once(tokenizer: Tokenizer, chunks: list[list[int]], skip: bool) -> None:
    whole = tokenizer.decode([i for chunk in chunks for i in chunk], skip_special_tokens=skip, continuation=True)
    assert "".join(stream(tokenizer, chunks, skip=skip)) == whole


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
@settings(deadline=None, derandomize=True, max_examples=200)
def test_valid_text_never_shows_a_replacement_character(text: str) -> None:
    ids = BYTE_LEVEL.encode(text, add_special_tokens=False)
    pieces = stream(BYTE_LEVEL, [[token_id] for token_id in ids])
    assert "".join(pieces) == text
    assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


def test_an_emoji_comes_with_the_token_that_completes_it() -> None:
    ids = BYTE_LEVEL.encode("a🙂b", add_special_tokens=False)
    assert stream(BYTE_LEVEL, [[token_id] for token_id in ids]) == ["a", "", "", "", "🙂", "b", ""]


def test_a_control_token_inside_a_character_changes_nothing() -> None:
    first, *rest = BYTE_LEVEL.encode("é", add_special_tokens=False)
    assert "".join(stream(BYTE_LEVEL, [[first], [END], rest])) == "é"


def test_an_output_that_ends_inside_a_character_ends_with_a_replacement() -> None:
    ids = BYTE_LEVEL.encode("a🙂", add_special_tokens=False)
    assert stream(BYTE_LEVEL, [ids[:-1]]) == ["a", "\ufffd"]


def test_word_pieces_join_as_they_do_at_once(tmp_path: Path) -> None:
    backend = word_pieces()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(model_info(tmp_path), ModelConfig(), FrontendConfig())
    for ids in ([1, 2, 3, 5, 4], [3], [1, 4, 3, 4, 4], []):
        for size in (1, 2, 3):
            chunks = [ids[i : i + size] for i in range(0, len(ids), size)]
            assert "".join(stream(tokenizer, chunks)) == backend.decode(ids)


@pytest.mark.model
@given(ids=st.lists(st.integers(0, 49200), max_size=60))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_random_tokens_of_the_demo_model_stream_to_the_same_text(demo_renderer: Renderer, ids: list[int]) -> None:
    tokenizer = demo_renderer.tokenizer
    assert "".join(stream(tokenizer, [[token_id] for token_id in ids])) == tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("keeps", "text"), [(True, "play [A] [B] [A] do [B]"), (False, "play [A][B][A] do [B]")], ids=["keeps", "joins"]
)
@pytest.mark.parametrize("size", [1, 3])
def test_blanks_between_control_tokens_can_be_left_out(tmp_path: Path, keeps: bool, text: str, size: int) -> None:
    backend = word_pieces()
    backend.add_special_tokens(["[A]", "[B]"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(model_info(tmp_path), ModelConfig(), FrontendConfig())
    first, second = tokenizer.special_texts["[A]"], tokenizer.special_texts["[B]"]
    ids = [1, first, second, first, 3, second]
    detokenizer = make_detokenizer(tokenizer, skip_special_tokens=False, spaces_between_special_tokens=keeps)
    pieces = [detokenizer.push(ids[i : i + size]) for i in range(0, len(ids), size)]
    assert "".join(pieces) + detokenizer.flush() == text


class DecodingAll:
    """The definition: everything is decoded again for each piece."""

    def __init__(self, tokenizer: Tokenizer, skip: bool) -> None:
        self._tokenizer, self._skip = tokenizer, skip
        self._ids: list[int] = []
        self._given = ""

    def push(self, ids: list[int]) -> str:
        self._ids += ids
        texts = [self._decode(self._ids[:-1]), self._decode(self._ids)] if ids else ["", ""]
        return self._give(os.path.commonprefix(texts).rstrip("\ufffd"))  # noqa: RUF071 - characters are meant

    def flush(self) -> str:
        return self._give(self._decode(self._ids))

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip, continuation=True)

    def _give(self, text: str) -> str:
        new = text[len(self._given) :]
        self._given += new
        return new


def backed(decoder: Any) -> BackedTokenizer:
    tokens = ["a", "b</w>", "##s", "##ing", ".", "n't", "|", "<pad>", "\u2581do", "\u2581", "é", "'m", "x</w>", " y"]
    backend = tokenizers.Tokenizer(models.WordPiece(vocab={token: i for i, token in enumerate(tokens)}, unk_token="a"))
    backend.add_special_tokens(["[A]", "[B]"])
    backend.decoder = decoder
    return BackedTokenizer(backend, bos_id=None, eos_ids=())


LOOKING_AROUND = {
    "WordPiece": backed(decoders.WordPiece()),
    "BPE": backed(decoders.BPEDecoder()),
    "CTC": backed(decoders.CTC()),
    "none": backed(None),
}


@pytest.mark.parametrize("name", LOOKING_AROUND)
@given(ids=st.lists(st.integers(0, 17), min_size=90, max_size=400), size=st.integers(1, 90), skip=st.booleans())
@settings(deadline=None, derandomize=True, max_examples=120)
def test_decoding_the_newest_tokens_gives_the_pieces_of_decoding_all(
    name: str, ids: list[int], size: int, skip: bool
) -> None:
    tokenizer = LOOKING_AROUND[name]
    assert not tokenizer.joins_bytes
    definition = DecodingAll(tokenizer, skip)
    chunks = [ids[i : i + size] for i in range(0, len(ids), size)]
    expected = [*(definition.push(chunk) for chunk in chunks), definition.flush()]
    assert stream(tokenizer, chunks, skip=skip) == expected


class CountingTokenizer(BackedTokenizer):
    num_decoded = 0

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True, continuation: bool = False) -> str:
        self.num_decoded += len(ids)
        return super().decode(ids, skip_special_tokens=skip_special_tokens, continuation=continuation)


def test_the_work_for_a_token_does_not_grow_with_the_text() -> None:
    backend = word_pieces()
    tokenizer = CountingTokenizer(backend, bos_id=None, eos_ids=())
    pieces = stream(tokenizer, [[1 + i % 5] for i in range(4000)])
    assert "".join(pieces) == backend.decode([1 + i % 5 for i in range(4000)])
    assert tokenizer.num_decoded < 4000 * 150
