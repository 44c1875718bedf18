from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corefw.errors import ConfigError
from corefw.models.layers.context import TensorParallel
from corefw.models.layers.sharding import split_evenly, split_heads, split_padded


def test_three_kv_groups_over_two_ranks_are_two_and_one() -> None:
    parts = [split_evenly("KV heads", 3, TensorParallel(rank, 2)) for rank in range(2)]
    assert [(part.start, part.size) for part in parts] == [(0, 2), (2, 1)]
    assert [(part.scaled(3).start, part.scaled(3).size) for part in parts] == [(0, 6), (6, 3)]


@given(total=st.integers(1, 200), size=st.integers(1, 16))
def test_parts_cover_everything_once_and_the_first_ranks_have_more(total: int, size: int) -> None:
    if total < size:
        with pytest.raises(ConfigError, match=f"use at most {total}"):
            split_evenly("KV heads", total, TensorParallel(0, size))
        return
    parts = [split_evenly("KV heads", total, TensorParallel(rank, size)) for rank in range(size)]
    assert [i for part in parts for i in range(part.start, part.start + part.size)] == list(range(total))
    sizes = [part.size for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


@given(total=st.integers(1, 200), size=st.integers(1, 16))
def test_padded_parts_cover_everything_once_in_equal_pieces(total: int, size: int) -> None:
    parts = [split_padded(total, TensorParallel(rank, size)) for rank in range(size)]
    assert [i for part in parts for i in range(part.start, part.start + part.size)] == list(range(total))
    assert len({part.padded_size for part in parts}) == 1
    assert all(part.start in (part.padded_size * rank, total) for rank, part in enumerate(parts))


@given(groups=st.integers(1, 6), heads_per_group=st.integers(1, 8), size=st.integers(1, 24))
def test_every_query_head_is_on_one_rank_together_with_its_kv_head(
    groups: int, heads_per_group: int, size: int
) -> None:
    num_heads = groups * heads_per_group
    if size > num_heads:
        with pytest.raises(ConfigError, match=f"use at most {num_heads}"):
            split_heads(num_heads, groups, TensorParallel(0, size))
        return
    parts = [split_heads(num_heads, groups, TensorParallel(rank, size)) for rank in range(size)]
    assert [h for query, _ in parts for h in range(query.start, query.start + query.size)] == list(range(num_heads))
    for query, kv in parts:
        read = {head // heads_per_group for head in range(query.start, query.start + query.size)}
        assert read == set(range(kv.start, kv.start + kv.size))
        assert query.total == num_heads
        assert kv.total == groups
        assert query.size % kv.size == 0
