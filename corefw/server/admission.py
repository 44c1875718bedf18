"""The admission limit: how many sequences may run or wait at once. What comes on top is told when to come again."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from corefw.errors import CapacityError, RequestError

__all__ = ["Admission"]

# The rate at which places become free is that of the last ones.
_NUM_REMEMBERED = 64
_MAX_RETRY_AFTER_S = 60


class _Held:
    """Places of a block, and how many of them no generation is in."""

    def __init__(self, num_free: int) -> None:
        self.num_free = num_free
        self.is_over = False


class Admission:
    """Counts sequences from before their rendering to their end. Used on the event loop alone.

    Args:
        limit: sequences that may be there at once.
        clock: in seconds.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._num_admitted = 0
        self._freed: deque[tuple[float, int]] = deque(maxlen=_NUM_REMEMBERED)
        self._held: ContextVar[_Held | None] = ContextVar("held", default=None)

    @property
    def num_admitted(self) -> int:
        """Sequences that hold a place."""
        return self._num_admitted

    @contextmanager
    def places(self, num_sequences: int) -> Iterator[None]:
        """Hold places for the length of a block, in which this task and those that it starts generate.

        Raises:
            RequestError: there are never so many.
            CapacityError: there are not so many now.
        """
        with self._taken(num_sequences):
            held = _Held(num_sequences)
            self._held.set(held)
            try:
                yield
            finally:
                held.is_over = True  # the variable stays: a generator may end in another context than it began in

    @contextmanager
    def generating(self, num_sequences: int) -> Iterator[None]:
        """A block that generates: in places that are held for it, or else in places of its own.

        Raises:
            RequestError, CapacityError: see ``places``.
        """
        held = self._held.get()
        if held is None or held.is_over or held.num_free < num_sequences:
            with self._taken(num_sequences):
                yield
            return
        held.num_free -= num_sequences
        try:
            yield
        finally:
            held.num_free += num_sequences

    @contextmanager
    def _taken(self, num_sequences: int) -> Iterator[None]:
        self._check_room(num_sequences)
        self._num_admitted += num_sequences
        try:
            yield
        finally:
            self._num_admitted -= num_sequences
            self._freed.append((self._clock(), num_sequences))

    def _check_room(self, num_sequences: int) -> None:
        if num_sequences > self._limit:
            raise RequestError(
                f"prompts times n must be at most {self._limit} (--max-concurrent-requests), got {num_sequences}",
                param="n",
            )
        num_missing = self._num_admitted + num_sequences - self._limit
        if num_missing > 0:
            raise CapacityError(
                f"this server takes {self._limit} sequences at once (--max-concurrent-requests) and has no room for "
                f"{num_sequences} more; try again later",
                retry_after_s=self._estimate_s(num_missing),
            )

    def _estimate_s(self, num_missing: int) -> int:
        """When so many places will be free, should they go on becoming free as they lately did."""
        num_freed = sum(num for _, num in self._freed) - (self._freed[0][1] if self._freed else 0)
        if not num_freed:
            return 1
        elapsed_s = self._clock() - self._freed[0][0]  # since the first of them, which therefore doesn't count
        return max(1, min(_MAX_RETRY_AFTER_S, math.ceil(num_missing * elapsed_s / num_freed)))
