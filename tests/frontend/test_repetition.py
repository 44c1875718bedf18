from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.frontend.repetition import RepetitionDetector
from corefw.messages.sampling import RepetitionDetection


def _repeats(ids: list[int], wanted: RepetitionDetection) -> bool:
    """By the definition: some pattern stands min_count times at the end."""
    sizes = range(wanted.min_pattern_size, wanted.max_pattern_size + 1)
    return any(
        len(ids) >= size * wanted.min_count and ids[-size * wanted.min_count :] == ids[-size:] * wanted.min_count
        for size in sizes
    )


@given(
    ids=st.lists(st.integers(0, 2), max_size=40),
    num_prior=st.integers(0, 40),
    low=st.integers(1, 3),
    more=st.integers(0, 4),
    count=st.integers(2, 4),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_a_repetition_is_what_the_definition_says_also_after_a_resumption(
    ids: list[int], num_prior: int, low: int, more: int, count: int
) -> None:
    wanted = RepetitionDetection(max_pattern_size=low + more, min_pattern_size=low, min_count=count)
    num_prior = min(num_prior, len(ids))
    detector = RepetitionDetector(wanted, ids[:num_prior])
    for position in range(num_prior, len(ids)):
        assert detector.push(ids[position]) == _repeats(ids[: position + 1], wanted)
