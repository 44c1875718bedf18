from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.runtime.sampling.token_counts import TokenCounts


@given(
    ids=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    num_prompt=st.integers(1, 30),
    stops=st.sets(st.integers(0, 30)),
    with_prompt=st.booleans(),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_counts_are_those_of_prompt_and_outputs_wherever_one_looked_before(
    ids: list[int], num_prompt: int, stops: set[int], with_prompt: bool
) -> None:
    num_prompt = min(num_prompt, len(ids))
    counts = TokenCounts(with_prompt=with_prompt)
    for stop in sorted(stops | {len(ids)}):
        if num_prompt <= stop <= len(ids):
            counts.advance(np.array(ids[:stop], dtype=np.int32), num_prompt)
    expected = Counter(ids[num_prompt:])
    if with_prompt:
        expected.update(dict.fromkeys(ids[:num_prompt], 0))
    token_ids, times = counts.columns()
    assert dict(zip(token_ids.tolist(), times.tolist(), strict=True)) == expected


@pytest.mark.parametrize("with_prompt", [False, True])
def test_nothing_is_counted_before_the_first_output(with_prompt: bool) -> None:
    counts = TokenCounts(with_prompt=with_prompt)
    counts.advance(np.array([3, 3, 5], dtype=np.int32), 3)
    token_ids, times = counts.columns()
    assert token_ids.tolist() == ([3, 5] if with_prompt else [])
    assert not times.any()


def test_embedded_parts_of_a_prompt_have_no_ids() -> None:
    counts = TokenCounts(with_prompt=True, embedded=(slice(0, 2), slice(4, 5)))
    counts.advance(np.array([0, 0, 7, 8, 0, 9], dtype=np.int32), 5)
    ids, times = counts.columns()
    assert dict(zip(ids.tolist(), times.tolist(), strict=True)) == {7: 0, 8: 0, 9: 1}
