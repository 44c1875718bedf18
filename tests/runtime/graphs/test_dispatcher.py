"""A batch's recording: whole before in pieces before none, at the next larger size."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.runtime.graphs.descriptor import BatchDescriptor, GraphMode
from corefw.runtime.graphs.dispatcher import GraphDispatcher, default_sizes

NONE, PIECEWISE, FULL = GraphMode


def _dispatcher(
    decode: GraphMode, mixed: GraphMode, sizes: tuple[int, ...] = (1, 2, 4, 8, 16), max_num_seqs: int = 6
) -> GraphDispatcher:
    return GraphDispatcher(decode=decode, mixed=mixed, sizes=sizes, max_num_seqs=max_num_seqs)


@pytest.mark.parametrize(
    ("modes", "batch", "expected"),
    [
        ((FULL, PIECEWISE), (3, 3), BatchDescriptor(FULL, 4, 4, True)),
        ((FULL, PIECEWISE), (4, 4), BatchDescriptor(FULL, 4, 4, True)),
        ((FULL, PIECEWISE), (3, 2), BatchDescriptor(PIECEWISE, 4, 0, False)),
        ((FULL, NONE), (3, 2), None),
        ((FULL, FULL), (9, 2), BatchDescriptor(FULL, 16, 6, False)),
        ((PIECEWISE, NONE), (3, 3), BatchDescriptor(PIECEWISE, 4, 0, True)),
        ((NONE, PIECEWISE), (3, 3), BatchDescriptor(PIECEWISE, 4, 0, False)),
        ((FULL, NONE), (5, 5), None),  # 8 are more requests than there are slots
        ((FULL, PIECEWISE), (5, 5), BatchDescriptor(PIECEWISE, 8, 0, False)),
        ((FULL, FULL), (17, 3), None),
        ((NONE, NONE), (1, 1), None),
    ],
)
def test_a_batch_gets_the_most_that_is_recorded_of_its_kind(
    modes: tuple[GraphMode, GraphMode], batch: tuple[int, int], expected: BatchDescriptor | None
) -> None:
    assert _dispatcher(*modes).choose(*batch) == expected


def test_batches_whose_extensions_have_other_keys_have_other_recordings() -> None:
    dispatcher = _dispatcher(FULL, NONE)
    keys = [None, ("adapter", 1), ("adapter", 2)]
    found = [dispatcher.choose(2, 2, key) for key in keys]
    assert len(set(found)) == 3
    assert [one.extension for one in found if one] == keys


@given(
    sizes=st.sets(st.integers(1, 64), min_size=1, max_size=8),
    num_requests=st.integers(1, 40),
    more=st.integers(0, 40),
    modes=st.tuples(st.sampled_from(GraphMode), st.sampled_from(GraphMode)),
)
@settings(deadline=None, max_examples=200, derandomize=True)
def test_what_is_chosen_holds_the_batch_and_is_among_what_is_recorded_ahead(
    sizes: set[int], num_requests: int, more: int, modes: tuple[GraphMode, GraphMode]
) -> None:
    dispatcher = _dispatcher(*modes, sizes=tuple(sorted(sizes)), max_num_seqs=40)
    found = dispatcher.choose(num_requests + more, num_requests)
    if found is not None:
        assert found in list(dispatcher.all())
        assert found.num_tokens >= num_requests + more
        assert found.mode is not FULL or found.num_requests >= num_requests
        assert found.is_decode <= (more == 0)


def test_everything_is_recorded_from_the_largest_down() -> None:
    found = [(one.num_tokens, one.mode) for one in _dispatcher(FULL, PIECEWISE, (2, 8)).all()]
    assert found == [(8, PIECEWISE), (2, FULL), (2, PIECEWISE)]


def test_sizes_are_every_one_or_lie_the_wider_apart_the_larger_they_are() -> None:
    assert default_sizes(3, every=True) == (1, 2, 3)
    assert default_sizes(20, every=False) == (1, 2, 4, 8, 16, 20)
    assert default_sizes(1, every=False) == (1,)
    large = default_sizes(512, every=False)
    assert (large[0], large[-1], len(large)) == (1, 512, 51)
