from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.messages.plain import joined_news, plain_problem

LEAVES = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)


@given(TREES)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_plain_data_arrive_as_they_were_sent(value: Any) -> None:
    assert plain_problem(value) is None
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value)) == value


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (object(), "has a object"),
        ([{"a": {1}}], "has a set"),
        (np.zeros(1), "has a ndarray"),
        ([2**63], "beyond 64 bits"),
        (["\ud800"], "isn't valid Unicode"),
        ({1: 2}, "has a key that isn't a text"),
        ({"\ud800": 2}, "has a key that isn't a text"),
    ],
)
def test_what_is_not_plain_is_named(value: object, problem: str) -> None:
    told = plain_problem(value)
    assert told is not None
    assert problem in told


def test_depth_and_size_are_bounded() -> None:
    nested: Any = 1
    for _ in range(3):
        nested = [nested]
    assert plain_problem(nested, max_depth=3) is None
    assert plain_problem([nested], max_depth=3) == "is nested deeper than 3 levels"
    assert plain_problem([0] * 9, max_values=10) is None
    for large in ([0] * 10, ["x" * 80], {str(i): 0 for i in range(6)}):
        assert plain_problem(large, max_values=10) == "is larger than 10 values"


def test_a_value_that_contains_itself_is_too_deep() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert "deeper" in str(plain_problem(loop))


def test_news_are_joined_by_key_lists_by_following_each_other() -> None:
    first = {"a": {"states": [1], "best": 3, "at": {"x": [0]}}, "b": {"seen": True}}
    second = {"a": {"states": [2], "best": 1, "at": {"x": [1], "y": 2}}}
    joined = joined_news(first, second)
    assert joined == {"a": {"states": [1, 2], "best": 1, "at": {"x": [0, 1], "y": 2}}, "b": {"seen": True}}
    assert first["a"]["states"] == [1], "neither is changed"
    assert joined_news({}, second) == joined_news(second, {}) == second
