"""Sampling parameters refuse what can't be sampled, and name the field."""

from __future__ import annotations

import math
from typing import Any

import pytest

from corefw.errors import RequestError
from corefw.messages.sampling import RepetitionDetection, SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", 1e308),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("min_p", -1.0),
        ("n", 0),
        ("top_k", -2),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("logprobs", -2),
        ("prompt_logprobs", -2),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e308),
        ("presence_penalty", 2.1),
        ("presence_penalty", math.nan),
        ("frequency_penalty", -math.inf),
        ("logit_bias", {1: 100.5}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", dict.fromkeys(range(301), 1.0)),
        ("allowed_token_ids", ()),
        ("allowed_token_ids", (-1,)),
        ("bad_words", ("",)),
        ("bad_words", (" ",)),
        ("truncate_prompt_tokens", 0),
        ("truncate_prompt_tokens", -2),
        ("seed", 2**63),
        ("stop", ("",)),
        ("stop_token_ids", (-1,)),
    ],
)
def test_a_value_out_of_range_names_its_field(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


def test_min_tokens_beyond_max_tokens_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(min_tokens=5, max_tokens=4)
    assert caught.value.param == "min_tokens"


def test_a_temperature_near_zero_is_greedy() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert SamplingParams(temperature=1e-6).is_greedy
    assert not SamplingParams(temperature=0.01).is_greedy


def test_a_prompt_alone_can_be_scored_and_a_text_without_detokenising_not_searched() -> None:
    assert SamplingParams(max_tokens=0, prompt_logprobs=0).max_tokens == 0
    with pytest.raises(RequestError, match="detokenize") as caught:
        SamplingParams(stop=("a",), detokenize=False)
    assert caught.value.param == "stop"


@pytest.mark.parametrize(
    "values",
    [
        {"max_pattern_size": 0},
        {"max_pattern_size": 2, "min_pattern_size": 3},
        {"max_pattern_size": 10**9},
        {"max_pattern_size": 5, "min_count": 1},
        {"max_pattern_size": 1000, "min_count": 10**9},
    ],
)
def test_a_repetition_that_cant_be_looked_for_is_refused(values: dict[str, int]) -> None:
    with pytest.raises(RequestError, match="repetition_detection"):
        RepetitionDetection(**values)


@pytest.mark.parametrize(
    ("field", "low"), [("n", 1), ("top_k", 0), ("max_tokens", 1), ("min_tokens", 0), ("logprobs", -1)]
)
@pytest.mark.parametrize("value", [2**63, 2**64, 10**4000])
def test_a_number_that_is_too_large_is_told_the_upper_bound(field: str, low: int, value: int) -> None:
    with pytest.raises(RequestError, match=rf"^{field} must be a whole number in \[{low}, {2**63 - 1}\]") as caught:
        SamplingParams(**{field: value})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p"])
@pytest.mark.parametrize("value", [10**400, -(10**400), math.nan, math.inf])
def test_no_number_is_too_strange_to_be_refused(field: str, value: float) -> None:
    with pytest.raises(RequestError, match=rf"^{field} must be in ") as caught:
        SamplingParams(**{field: value})
    assert len(str(caught.value)) < 200


def test_a_value_just_outside_is_shown_in_full() -> None:
    with pytest.raises(RequestError, match=r"top_p must be in \(0, 1\], got 1\.0000001$"):
        SamplingParams(top_p=1.0000001)


def test_a_stop_token_id_that_no_message_carries_is_refused() -> None:
    with pytest.raises(RequestError, match="stop_token_ids must be in"):
        SamplingParams(stop_token_ids=(2**63,))
