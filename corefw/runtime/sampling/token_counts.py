"""Which tokens a request has seen, and how often it has produced them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["TokenCounts"]


class TokenCounts:
    """A function of (prompt ids, output ids), brought up to date as outputs come: so it survives any resumption.

    Args:
        with_prompt: whether tokens that stand in the prompt alone are of interest.
        embedded: parts of the prompt, as slices, that are embeddings and have no ids.
    """

    def __init__(self, *, with_prompt: bool, embedded: Sequence[slice] = ()) -> None:
        self._with_prompt = with_prompt
        self._embedded = embedded
        self._counts: dict[int, int] = {}
        self._num_counted: int | None = None

    def advance(self, token_ids: npt.NDArray[np.int32], num_prompt: int) -> None:
        """Take in what came since the last call; the ids are the whole prompt and all outputs."""
        if self._num_counted is None:
            self._num_counted = num_prompt
            if self._with_prompt:
                self._counts = dict.fromkeys(np.unique(self._prompt(token_ids[:num_prompt])).tolist(), 0)
        for token_id in token_ids[self._num_counted :].tolist():
            self._counts[token_id] = self._counts.get(token_id, 0) + 1
        self._num_counted = len(token_ids)

    def _prompt(self, prompt_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        return np.delete(prompt_ids, np.r_[tuple(self._embedded)]) if self._embedded else prompt_ids

    def columns(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Ids, and how often each is in the output."""
        size = len(self._counts)
        ids = np.fromiter(self._counts.keys(), dtype=np.int64, count=size)
        return ids, np.fromiter(self._counts.values(), dtype=np.float32, count=size)
