from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.errors import ConfigError, ModelFormatError
from corefw.frontend.tokenizer.base import Tokenizer
from corefw.frontend.tokenizer.gguf_vocabulary import tokenizer_from_gguf
from tests.frontend.vocabularies import (
    BOS,
    END,
    byte_level,
    byte_level_metadata,
    sentence_piece,
    sentence_piece_metadata,
)

BYTE_LEVEL = byte_level()
SENTENCE_PIECE = sentence_piece()
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCE_PIECE], ids=["byte-level", "SentencePiece"])
@given(text=TEXTS)
@settings(deadline=None, derandomize=True, max_examples=200)
def test_decoding_gives_every_text_back(tokenizer: Tokenizer, text: str) -> None:
    if "\u2581" in text and tokenizer is SENTENCE_PIECE:
        return  # the mark for a blank can't be told from a blank there
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    raw = b"".join(map(tokenizer.token_bytes, ids)).decode()
    assert raw == (" " + text if text and tokenizer.strips_blank else text)


@given(text=st.lists(st.sampled_from(["<|im_end|>", "<s>", "hello", " world", "<", "|"]), max_size=8).map("".join))
@settings(deadline=None, derandomize=True, max_examples=200)
def test_control_tokens_come_from_text_only_when_parsed(text: str) -> None:
    plain = BYTE_LEVEL.encode(text, add_special_tokens=False)
    parsed = BYTE_LEVEL.encode(text, add_special_tokens=False, parse_special=True)
    assert not any(map(BYTE_LEVEL.is_special, plain))
    assert parsed.count(END) == text.count("<|im_end|>")


def test_user_defined_tokens_are_found_in_any_text_and_stay_in_the_output() -> None:
    ids = BYTE_LEVEL.encode("a<think>b", add_special_tokens=False)
    assert [BYTE_LEVEL.token_bytes(token_id) for token_id in ids] == [b"a", b"<think>", b"b"]
    assert BYTE_LEVEL.decode(ids) == "a<think>b"


def test_control_tokens_are_left_out_of_text_unless_wanted() -> None:
    ids = [BOS, *BYTE_LEVEL.encode("hello"), END]
    assert BYTE_LEVEL.decode(ids) == "hello"
    assert BYTE_LEVEL.decode(ids, skip_special_tokens=False) == "<s>hello<|im_end|>"


def test_every_byte_has_its_true_value() -> None:
    for tokenizer in (BYTE_LEVEL, SENTENCE_PIECE):
        singles = {tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)}
        assert {bytes([byte]) for byte in range(256)} <= singles


@pytest.mark.parametrize("token_id", [-1, 10**6, 2**63])
def test_ids_outside_the_vocabulary_are_no_text(token_id: int) -> None:
    assert BYTE_LEVEL.token_bytes(token_id) == b""
    assert BYTE_LEVEL.decode([token_id, *BYTE_LEVEL.encode("hello"), token_id]) == "hello"


@pytest.mark.parametrize(
    ("make", "changes", "expected"),
    [
        (byte_level, {}, (False, False)),
        (byte_level, {"add_bos_token": True}, (True, False)),
        (byte_level, {"pre": "llama-bpe"}, (True, False)),
        (byte_level, {"pre": "llama-bpe", "add_bos_token": False}, (False, False)),
        (byte_level, {"add_bos_token": True, "add_eos_token": True}, (True, True)),
        (sentence_piece, {}, (True, False)),
        (sentence_piece, {"add_bos_token": False, "add_eos_token": True}, (False, True)),
    ],
)
def test_begin_and_end_tokens_are_added_as_the_file_says(make: Any, changes: Any, expected: tuple[bool, bool]) -> None:
    tokenizer = make(**changes)
    ids = tokenizer.encode("hello")
    assert (ids[0] == tokenizer.bos_id, ids[-1] == tokenizer.eos_ids[0]) == expected
    assert tokenizer.adds_bos == expected[0]
    assert len(tokenizer.encode("hello", add_special_tokens=False)) == len(ids) - sum(expected)


def test_a_space_prefix_is_added_before_text_and_taken_off_again() -> None:
    with_prefix, without = SENTENCE_PIECE, sentence_piece(add_space_prefix=False)
    assert with_prefix.encode("a", add_special_tokens=False) == without.encode(" a", add_special_tokens=False)
    ids = with_prefix.encode("ab", add_special_tokens=False)
    assert with_prefix.decode(ids) == "ab"
    assert with_prefix.decode(ids, continuation=True) == " ab"
    assert without.decode(without.encode(" ab")) == " ab"


def test_the_end_of_turn_is_an_end_token_even_if_the_file_names_none() -> None:
    assert byte_level(eos_token_id=3).eos_ids == (3, END)
    assert byte_level(eos_token_id=3, eot_token_id=0).eos_ids == (3, 0)


def test_special_ids_outside_the_vocabulary_count_as_absent() -> None:
    tokenizer = byte_level(bos_token_id=10**6, add_bos_token=True)
    assert tokenizer.bos_id is None
    assert tokenizer.encode("hello") == BYTE_LEVEL.encode("hello")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "t5"}, ConfigError, "'t5'.*gpt2 and llama.*--tokenizer"),
        ({"model": None}, ConfigError, "--tokenizer"),
        ({"pre": "command-r"}, ConfigError, "'command-r'.*known are"),
        ({"tokens": None}, ModelFormatError, "tokens"),
        ({"merges": None}, ModelFormatError, "merges"),
        ({"merges": ["hello"]}, ModelFormatError, "isn't a pair"),
        ({"merges": ["h zzz"]}, ModelFormatError, "don't fit"),
        ({"token_type": [1, 2]}, ModelFormatError, "token_type"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, ModelFormatError, "twice"),
    ],
)
def test_a_broken_vocabulary_is_refused_by_name(changes: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tokenizer_from_gguf(byte_level_metadata(**changes))


def test_scores_that_dont_fit_the_tokens_are_refused() -> None:
    with pytest.raises(ModelFormatError, match="scores"):
        tokenizer_from_gguf(sentence_piece_metadata(scores=[0.0]))


def test_one_tokenizer_serves_threads_that_parse_and_dont() -> None:
    text = "hello<|im_end|> world" * 20
    expected = {parse: BYTE_LEVEL.encode(text, parse_special=parse) for parse in (True, False)}
    assert expected[True] != expected[False]

    def encode(i: int) -> bool:
        parse = i % 2 == 0
        return BYTE_LEVEL.encode(text, parse_special=parse) == expected[parse]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(encode, range(400)))
