from __future__ import annotations

import numpy as np
import pytest

from corefw.runtime.sampling.randomness import philox4x32, uniform

# Known answers published with the Random123 library (kat_vectors, philox4x32 10).
_KNOWN_ANSWERS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def _words(values: list[int]) -> tuple[np.ndarray, ...]:
    return tuple(np.array([value], dtype=np.uint64) for value in values)


@pytest.mark.parametrize(("counter", "key", "expected"), _KNOWN_ANSWERS)
def test_philox_gives_the_published_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    assert [int(word[0]) for word in philox4x32(_words(counter), _words(key))] == expected


def test_numbers_lie_strictly_between_zero_and_one_and_are_spread_evenly() -> None:
    numbers = uniform(np.full(200_000, 7), np.arange(200_000), 0)
    assert numbers.min() > 0
    assert numbers.max() < 1
    counts = np.histogram(numbers, bins=50, range=(0, 1))[0]
    expected = len(numbers) / 50
    assert ((counts - expected) ** 2 / expected).sum() < 85.4  # chi-square, 49 degrees of freedom, p = 0.001


def test_a_number_depends_on_seed_position_and_draw_but_not_on_its_neighbours() -> None:
    seeds = np.array([1, 1, 2, -1, 2**63 - 1, -(2**63)])
    positions = np.array([0, 1, 0, 0, 2**40, 5])
    together = uniform(seeds, positions, 0)
    assert len(set(together)) == len(together)
    alone = [uniform(seeds[i : i + 1], positions[i : i + 1], 0)[0] for i in range(len(seeds))]
    assert together.tolist() == alone
    assert not (uniform(seeds, positions, 1) == together).any()


def test_neighbouring_seeds_and_positions_are_uncorrelated() -> None:
    grid = uniform(np.repeat(np.arange(400), 400), np.tile(np.arange(400), 400), 0).reshape(400, 400)
    for one, other in ((grid[1:], grid[:-1]), (grid[:, 1:], grid[:, :-1])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.01
