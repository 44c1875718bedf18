"""From a batch to the recording that computes it: FULL before PIECEWISE before none, padded to a recorded size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from corefw.runtime.graphs.descriptor import BatchDescriptor, GraphMode

__all__ = ["GraphDispatcher", "default_sizes"]


def default_sizes(largest: int, *, every: bool) -> tuple[int, ...]:
    """Sizes up to ``largest``, itself included: every one, or some that lie the wider apart the larger they are."""
    if every:
        return tuple(range(1, largest + 1))
    steps = (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16))
    return tuple(sorted({*(size for size in steps if size <= largest), largest}))


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphDispatcher:
    """Which batches have which recordings. Knows numbers alone, so every rank answers the same.

    Attributes:
        decode: how steps are recorded in which every request has one token.
        mixed: how all others are.
        sizes: numbers of tokens, rising.
        max_num_seqs: requests of a step at most.
    """

    decode: GraphMode
    mixed: GraphMode
    sizes: Sequence[int]
    max_num_seqs: int

    def choose(
        self, num_tokens: int, num_requests: int, extension: Hashable = None, *, is_greedy: bool = False
    ) -> BatchDescriptor | None:
        """The descriptor of a batch, padded; None when nothing is recorded for the likes of it.

        Args:
            num_tokens: of the step.
            num_requests: of the step.
            extension: what else decides which kernels run.
            is_greedy: nobody wants more than the most likely token.
        """
        index = bisect_left(self.sizes, num_tokens)
        if index == len(self.sizes):
            return None
        is_decode = num_tokens == num_requests
        return self._describe(self.sizes[index], is_decode, extension, is_greedy and is_decode) or self._describe(
            self.sizes[index], False, extension
        )

    def all(self) -> Iterator[BatchDescriptor]:
        """Everything that may be recorded, largest first: what is made later fits into the memory of what is there."""
        for size in reversed(self.sizes):
            for is_decode in (True, False):
                descriptor = self._describe(size, is_decode, None)
                if descriptor is not None:
                    yield descriptor

    def _describe(
        self, size: int, is_decode: bool, extension: Hashable, is_greedy: bool = False
    ) -> BatchDescriptor | None:
        mode = self.decode if is_decode else self.mixed
        if mode is GraphMode.NONE or (is_decode and size > self.max_num_seqs):
            return None
        num_requests = 0 if mode is GraphMode.PIECEWISE else size if is_decode else min(size, self.max_num_seqs)
        return BatchDescriptor(mode, size, num_requests, is_decode, extension, is_greedy)
