"""Token sequences that an output may not contain: where all but the last token stand, the last one is forbidden."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["BadWords"]


class BadWords:
    """Of one request. Looks at its output alone, so a word that begins in the prompt may end in the output.

    Args:
        sequences: each with at least one id.
    """

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self._always = np.array([ids[0] for ids in sequences if len(ids) == 1], dtype=np.int64)
        self._longer = [(np.array(ids[:-1], dtype=np.int64), ids[-1]) for ids in sequences if len(ids) > 1]

    def banned(self, output_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Ids that may not come next."""
        last = [
            token_id
            for beginning, token_id in self._longer
            if len(beginning) <= len(output_ids) and np.array_equal(output_ids[-len(beginning) :], beginning)
        ]
        return np.concatenate([self._always, np.array(last, dtype=np.int64)])
