"""Counter-based random numbers: a value is a function of (seed, output position, draw), so there is no state to lose.

Philox-4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["TOKEN_DRAW", "philox4x32", "uniform"]

# Which of the independent numbers of one output position: the one that chooses the token.
TOKEN_DRAW = 0

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))  # golden ratio, sqrt(3) - 1
_LOW_32 = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)

Words = npt.NDArray[np.uint64]


def philox4x32(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, ...]:
    """Ten rounds over four 32-bit words, each held in a uint64 array."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> _32) ^ c1 ^ k0,
            product1 & _LOW_32,
            (product0 >> _32) ^ c3 ^ k1,
            product0 & _LOW_32,
        )
        k0 = (k0 + _WEYL[0]) & _LOW_32
        k1 = (k1 + _WEYL[1]) & _LOW_32
    return c0, c1, c2, c3


def uniform(seeds: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], draw: int) -> npt.NDArray[np.float64]:
    """Uniform numbers strictly between 0 and 1.

    Args:
        seeds: [R].
        positions: [R], index of the token among its request's outputs.
        draw: which number at that position, below 2**32.

    Returns:
        [R]
    """
    seed, position = seeds.astype(np.uint64), positions.astype(np.uint64)
    zeros = np.zeros_like(seed)
    counter = (position & _LOW_32, position >> _32, zeros + np.uint64(draw), zeros)
    high, low, _, _ = philox4x32(counter, (seed & _LOW_32, seed >> _32))
    # 52 bits and a half: the largest value is then exact and below 1, the smallest above 0.
    bits = ((high << _32) | low) >> np.uint64(12)
    return (bits.astype(np.float64) + 0.5) * 2.0**-52
