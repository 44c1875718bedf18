"""Parts of a prompt have the embeddings that stand in them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.messages.arrays import Array
from corefw.messages.request import EmbeddingSpan, spans_within

LENGTH = 24


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH), st.integers(0, LENGTH), st.integers(0, LENGTH))
def test_the_spans_within_a_part_are_those_of_its_positions(marked: list[bool], one: int, other: int) -> None:
    start, stop = sorted((one, other))
    spans = [
        EmbeddingSpan(offset=position, values=Array.from_numpy(np.zeros((1, 2), np.float32)))
        for position in range(LENGTH)
        if marked[position]
    ]
    found = list(spans_within(spans, start, stop))
    assert [(span.offset, first, last) for span, first, last in found] == [
        (position, position, position + 1) for position in range(start, stop) if marked[position]
    ]


def test_a_span_is_cut_to_the_part() -> None:
    spans = [EmbeddingSpan(offset=2, values=Array.from_numpy(np.zeros((5, 2), np.float32)))]
    cuts = [
        [(first, last) for _, first, last in spans_within(spans, *part)] for part in [(0, 2), (0, 4), (3, 9), (7, 9)]
    ]
    assert cuts == [[], [(2, 4)], [(3, 7)], []]
