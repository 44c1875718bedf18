"""A step's log-probabilities, taken apart by request."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from corefw.messages.outputs import PositionLogprobs, StepLogprobs

__all__ = ["LogprobsByRow", "RowLogprobs"]


@dataclass(frozen=True, slots=True)
class _Arrays:
    token_ids: npt.NDArray[Any]
    logprobs: npt.NDArray[Any]
    ranks: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """One row's entries in the step's arrays: as many as it has sampled tokens, in their order."""

    arrays: _Arrays
    entries: list[int]

    def take(self, num_tokens: int, num_wanted: int) -> list[PositionLogprobs]:
        """The first tokens' entries, each with the chosen token and the ``num_wanted`` most likely ones."""
        width, arrays = 1 + num_wanted, self.arrays
        return [
            PositionLogprobs(
                arrays.token_ids[entry, :width].tolist(),
                arrays.logprobs[entry, :width].tolist(),
                int(arrays.ranks[entry]),
            )
            for entry in self.entries[:num_tokens]
        ]


class LogprobsByRow:
    """Finds a row's log-probabilities without a search."""

    def __init__(self, step: StepLogprobs | None) -> None:
        self._entries: dict[int, list[int]] = defaultdict(list)
        if step is None:
            return
        self._arrays = _Arrays(step.token_ids.to_numpy(), step.logprobs.to_numpy(), step.ranks.to_numpy())
        for entry, row in enumerate(step.rows):
            self._entries[row].append(entry)

    def row(self, row: int) -> RowLogprobs | None:
        """The log-probabilities of a row of the batch, if it asked for them."""
        entries = self._entries.get(row)
        return RowLogprobs(self._arrays, entries) if entries else None
