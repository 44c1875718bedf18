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
