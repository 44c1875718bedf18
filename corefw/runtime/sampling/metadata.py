"""What the sampler is told about the rows of a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from corefw.messages.sampling import GREEDY_EPS

__all__ = ["NO_LOGPROBS", "SamplingMetadata"]

NO_LOGPROBS = -1


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """Columns over the R rows that get a token, on the host.

    Attributes:
        temperature: float64 [R].
        top_p: float64 [R].
        top_k: int64 [R], 0 keeps all.
        min_p: float64 [R].
        seeds: int64 [R].
        positions: int64 [R], index of the new token among its request's outputs.
        num_logprobs: int64 [R], ``NO_LOGPROBS`` where none are wanted.
        banned_rows, banned_ids: int64 [N], coordinates of tokens that ``min_tokens`` forbids in this step.
    """

    temperature: npt.NDArray[np.float64]
    top_p: npt.NDArray[np.float64]
    top_k: npt.NDArray[np.int64]
    min_p: npt.NDArray[np.float64]
    seeds: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    num_logprobs: npt.NDArray[np.int64]
    banned_rows: npt.NDArray[np.int64]
    banned_ids: npt.NDArray[np.int64]

    @property
    def random_rows(self) -> npt.NDArray[np.intp]:
        """Rows that aren't greedy."""
        return np.flatnonzero(self.temperature >= GREEDY_EPS)

    @property
    def logprob_rows(self) -> npt.NDArray[np.intp]:
        """Rows that want log-probabilities."""
        return np.flatnonzero(self.num_logprobs != NO_LOGPROBS)
