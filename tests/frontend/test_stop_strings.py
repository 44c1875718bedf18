from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.frontend.stop_strings import StopMatch, StopStrings

TEXTS = st.lists(st.text("ab", max_size=5), max_size=8)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)


def run(
    stops: list[str], pieces: list[str], *, num_free: int = 0, include: bool = False
) -> tuple[list[str], str | None]:
    """Texts given out, and the stop; in the first ``num_free`` pieces nothing may end."""
    search = StopStrings(stops, include=include)
    given_out = []
    for i, piece in enumerate(pieces):
        found = search.push(piece, may_end=i >= num_free)
        if isinstance(found, StopMatch):
            return [*given_out, found.text], found.stop
        given_out.append(found)
    return [*given_out, search.flush()], None


def reference(stops: list[str], text: str, num_free_chars: int = 0, *, include: bool = False) -> tuple[str, str | None]:
    """Grow the text character by character; the first end of a stop string decides, the longest of several."""
    for end in range(num_free_chars + 1, len(text) + 1):
        found = max((stop for stop in stops if text[:end].endswith(stop)), key=len, default=None)
        if found is not None:
            return text[: end if include else end - len(found)], found
    return text, None


@given(stops=STOPS, pieces=TEXTS, include=st.booleans())
@settings(deadline=None, derandomize=True, max_examples=500)
def test_the_result_is_that_of_looking_at_every_character(stops: list[str], pieces: list[str], include: bool) -> None:
    given_out, stop = run(stops, pieces, include=include)
    assert ("".join(given_out), stop) == reference(stops, "".join(pieces), include=include)


@given(stops=STOPS, pieces=TEXTS, num_free=st.integers(0, 8))
@settings(deadline=None, derandomize=True, max_examples=500)
def test_nothing_that_ends_too_early_is_matched(stops: list[str], pieces: list[str], num_free: int) -> None:
    given_out, stop = run(stops, pieces, num_free=num_free)
    assert ("".join(given_out), stop) == reference(stops, "".join(pieces), len("".join(pieces[:num_free])))


@given(stops=STOPS, pieces=TEXTS)
@settings(deadline=None, derandomize=True, max_examples=300)
def test_only_a_possible_beginning_of_a_stop_string_is_held_back(stops: list[str], pieces: list[str]) -> None:
    search = StopStrings(stops)
    seen = given_out = ""
    for piece in pieces:
        found = search.push(piece)
        if isinstance(found, StopMatch):
            break
        seen, given_out = seen + piece, given_out + found
        held = seen[len(given_out) :]
        assert seen.startswith(given_out)
        assert held == max(
            (stop[:k] for stop in stops for k in range(len(stop)) if seen.endswith(stop[:k])), key=len, default=""
        )


@pytest.mark.parametrize(
    ("stops", "pieces", "given_out", "stop"),
    [
        (["END"], ["a E", "N", "D b"], ["a ", "", ""], "END"),
        (["END"], ["a E", "N", "X"], ["a ", "", "ENX"], None),
        (["END"], ["a E", "N"], ["a ", ""], None),
        (["bc", "abcd"], ["ab", "cd"], ["", "a"], "bc"),
        (["c", "abc"], ["xab", "c"], ["x", ""], "abc"),
        (["x"], ["one x two x"], ["one "], "x"),
        (["\n\n"], ["a\n", "b\n\nc"], ["a", "\nb"], "\n\n"),
    ],
)
def test_examples(stops: list[str], pieces: list[str], given_out: list[str], stop: str | None) -> None:
    texts, found = run(stops, pieces)
    assert found == stop
    assert texts[: len(given_out)] == given_out
