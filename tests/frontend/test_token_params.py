from __future__ import annotations

from typing import Any

import msgspec
import pytest

from corefw.errors import RequestError
from corefw.frontend.core_requests import core_requests
from corefw.frontend.token_params import check_choosable, truncated, with_token_ids
from corefw.messages.sampling import SamplingParams
from tests.frontend.vocabularies import byte_level, sentence_piece


def test_bad_words_become_ids_with_and_without_a_blank_before() -> None:
    tokenizer = byte_level()
    params = with_token_ids(SamplingParams(bad_words=("world", " hello")), tokenizer)
    texts = {tokenizer.decode(ids, continuation=True) for ids in params.bad_words_token_ids}
    assert texts == {"world", " world", "hello", " hello"}
    assert (tokenizer.encode(" world")[0],) in params.bad_words_token_ids
    assert params.bad_words == ("world", " hello")


def test_a_tokenizer_that_adds_a_blank_gives_the_word_inside_a_text_too() -> None:
    tokenizer = sentence_piece()
    params = with_token_ids(SamplingParams(bad_words=("the",)), tokenizer)
    texts = {tokenizer.decode(ids, continuation=True) for ids in params.bad_words_token_ids}
    assert texts == {"the", " the"}


def test_working_out_twice_changes_nothing() -> None:
    once = with_token_ids(SamplingParams(bad_words=("world",)), byte_level())
    assert with_token_ids(once, byte_level()) == once


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {10_000: 1.0}),
        ("allowed_token_ids", (1, 10_000)),
        ("stop_token_ids", (10_000,)),
        ("bad_words_token_ids", ((1, 10_000),)),
    ],
)
def test_ids_out_of_vocabulary_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestError, match="out of vocabulary") as caught:
        with_token_ids(SamplingParams(**{field: value}), byte_level())
    assert caught.value.param == field.removesuffix("_token_ids") if field.startswith("bad") else field


@pytest.mark.parametrize(
    ("limit", "max_tokens", "kept"),
    [(None, 5, 30), (40, 5, 30), (7, 5, 7), (-1, 5, 15), (-1, None, 19), (1, 1, 1), (-1, 19, 1)],
)
def test_the_last_tokens_of_a_prompt_are_kept(limit: int | None, max_tokens: int | None, kept: int) -> None:
    params = SamplingParams(truncate_prompt_tokens=limit, max_tokens=max_tokens)
    ids = list(range(30))
    assert truncated(ids, params, 20) == ids[-kept:]
    assert truncated(truncated(ids, params, 20), params, 20) == ids[-kept:]


def test_no_room_for_any_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="no room") as caught:
        truncated([1, 2], SamplingParams(truncate_prompt_tokens=-1, max_tokens=20), 20)
    assert caught.value.param == "max_tokens"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": (1, 2), "bad_words_token_ids": ((1,), (2,))}, "bad_words"),
        ({"allowed_token_ids": (7,), "min_tokens": 1}, "min_tokens"),
        ({"allowed_token_ids": (7, 5), "stop_token_ids": (5,), "min_tokens": 2}, "min_tokens"),
        ({"allowed_token_ids": (7, 1), "bad_words_token_ids": ((1,),), "min_tokens": 1}, "min_tokens"),
    ],
)
def test_parameters_that_leave_no_first_token_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        check_choosable(SamplingParams(**fields), eos_ids=(7,))
    assert (raised.value.param, raised.value.status) == (param, 400)


@pytest.mark.parametrize(
    "fields",
    [
        {"min_tokens": 3},
        {"allowed_token_ids": (7,)},
        {"allowed_token_ids": (7,), "min_tokens": 1, "ignore_eos": True},
        {"allowed_token_ids": (1, 2), "bad_words_token_ids": ((1,), (2, 2))},
    ],
)
def test_parameters_that_leave_a_first_token_pass(fields: dict[str, Any]) -> None:
    params = SamplingParams(**fields)
    check_choosable(params, eos_ids=(7,))
    requests = core_requests([1], msgspec.structs.replace(params, seed=0), eos_ids=(7,))
    assert [request.params.allowed_token_ids for request in requests] == [params.allowed_token_ids]
