"""Sampling parameters refuse what can't be sampled, and name the field."""

from __future__ import annotations

import math
from typing import Any

import pytest

from corefw.errors import RequestError
from corefw.messages.sampling import SamplingParams


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
