"""A step's log-probabilities, taken apart by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from corefw.messages.outputs import ModelRunnerOutput, PositionLogprobs, StepLogprobs
from corefw.messages.sampling import ALL_LOGPROBS

__all__ = ["LogprobsByRow", "RowLogprobs", "logprobs_by_id"]

_NONE: dict[str, RowLogprobs] = {}


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
        """The first tokens' entries, each with the chosen token and the ``num_wanted`` (-1: all) most likely ones."""
        width, arrays = None if num_wanted == ALL_LOGPROBS else 1 + num_wanted, self.arrays
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

    def __init__(self, *steps: StepLogprobs | None) -> None:
        self._found: dict[int, RowLogprobs] = {}
        for step in steps:
            if step is not None:
                self._add(step)

    def _add(self, step: StepLogprobs) -> None:
        arrays = _Arrays(step.token_ids.to_numpy(), step.logprobs.to_numpy(), step.ranks.to_numpy())
        for entry, row in enumerate(step.rows):
            self._found.setdefault(row, RowLogprobs(arrays, [])).entries.append(entry)

    def by_name(self, names: Sequence[str]) -> dict[str, RowLogprobs]:
        """All of them, by the names of their rows."""
        return {names[row]: found for row, found in self._found.items()}

    def row(self, row: int) -> RowLogprobs | None:
        """The log-probabilities of a row of the batch, if it asked for them."""
        return self._found.get(row)


def logprobs_by_id(result: ModelRunnerOutput) -> dict[str, RowLogprobs]:
    """The log-probabilities of a step, by id of the requests that asked for some."""
    if result.logprobs is None and result.full_logprobs is None:
        return _NONE
    return LogprobsByRow(result.logprobs, result.full_logprobs).by_name(result.request_ids)
