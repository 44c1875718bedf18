"""Outputs that have got stuck: their last tokens are one pattern, over and over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from corefw.messages.sampling import RepetitionDetection

__all__ = ["REPETITION_STOP_REASON", "RepetitionDetector"]

REPETITION_STOP_REASON = "repetition_detected"


class RepetitionDetector:
    """Of one output; a function of its tokens alone. A token costs one look at each pattern size.

    Args:
        wanted: which repetitions.
        prior_output_ids: tokens that the output has already.
    """

    def __init__(self, wanted: RepetitionDetection, prior_output_ids: Sequence[int] = ()) -> None:
        self._sizes = np.arange(wanted.min_pattern_size, wanted.max_pattern_size + 1)
        # Of each size: how many last tokens in a row equal the one that stands a pattern before them.
        self._runs = np.zeros(len(self._sizes), dtype=np.int64)
        self._needed = self._sizes * (wanted.min_count - 1)
        self._last = np.full(wanted.max_pattern_size, -1, dtype=np.int64)
        for token_id in prior_output_ids:
            self.push(token_id)

    def push(self, token_id: int) -> bool:
        """Take in the next token; whether a repetition is complete with it."""
        equal = self._last[-self._sizes] == token_id
        self._runs = np.where(equal, self._runs + 1, 0)
        self._last = np.roll(self._last, -1)
        self._last[-1] = token_id
        return bool((self._runs >= self._needed).any())
