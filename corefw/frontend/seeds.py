"""Seeds of a request's outputs."""

from __future__ import annotations

import hashlib
import secrets

__all__ = ["new_seed", "output_seed"]


def new_seed() -> int:
    """A random seed, for a request that brings none."""
    return secrets.randbits(63)


def output_seed(seed: int, index: int) -> int:
    """Seed of output ``index`` of a request with n outputs.

    The first has the request's own seed, so it equals what n=1 gives; the others have 63 bits of BLAKE2b over
    ``seed:index``. So the same seed gives the same n outputs, and a larger n only adds to them.
    """
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
