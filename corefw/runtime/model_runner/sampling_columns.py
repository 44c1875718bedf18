"""The batch's sampling parameters as columns, one value a row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from corefw.errors import EngineError
from corefw.messages.scheduling import NewRequest
from corefw.runtime.sampling.metadata import NO_LOGPROBS, SamplingMetadata

__all__ = ["SamplingColumns"]

_NO_IDS = np.zeros(0, dtype=np.int64)


class SamplingColumns:
    """Filled when a request enters; a step gathers the rows it samples."""

    def __init__(self, num_rows: int) -> None:
        self._temperature = np.zeros(num_rows, dtype=np.float64)
        self._top_p = np.ones(num_rows, dtype=np.float64)
        self._top_k = np.zeros(num_rows, dtype=np.int64)
        self._min_p = np.zeros(num_rows, dtype=np.float64)
        self._seed = np.zeros(num_rows, dtype=np.int64)
        self._num_logprobs = np.full(num_rows, NO_LOGPROBS, dtype=np.int64)
        self._min_tokens = np.zeros(num_rows, dtype=np.int64)
        self._end_ids = [_NO_IDS] * num_rows

    def set(self, row: int, request: NewRequest) -> None:
        """Take over a request's parameters."""
        params = request.params
        if params.seed is None:
            raise EngineError(f"request {request.request_id} came without a seed; the front end sets one")
        self._temperature[row] = params.temperature
        self._top_p[row] = params.top_p
        self._top_k[row] = params.top_k
        self._min_p[row] = params.min_p
        self._seed[row] = params.seed
        self._num_logprobs[row] = NO_LOGPROBS if params.logprobs is None else params.logprobs
        self._min_tokens[row] = params.min_tokens
        # With ignore_eos an end token ends nothing, so it may be sampled at any time.
        eos_ids = () if params.ignore_eos else request.eos_ids
        self._end_ids[row] = np.unique(np.array([*eos_ids, *params.stop_token_ids], dtype=np.int64))

    def move(self, source: int, target: int) -> None:
        """Put one row's values in the place of another's."""
        for column in (
            self._temperature,
            self._top_p,
            self._top_k,
            self._min_p,
            self._seed,
            self._num_logprobs,
            self._min_tokens,
        ):
            column[target] = column[source]
        self._end_ids[target] = self._end_ids[source]

    def gather(self, rows: npt.NDArray[np.intp], num_outputs: npt.NDArray[np.int64]) -> SamplingMetadata:
        """What the sampler needs for some rows, whose requests have that many output tokens so far."""
        banned_rows, banned_ids = self._banned(rows, num_outputs)
        return SamplingMetadata(
            temperature=self._temperature[rows],
            top_p=self._top_p[rows],
            top_k=self._top_k[rows],
            min_p=self._min_p[rows],
            seeds=self._seed[rows],
            positions=num_outputs,
            num_logprobs=self._num_logprobs[rows],
            banned_rows=banned_rows,
            banned_ids=banned_ids,
        )

    def _banned(
        self, rows: npt.NDArray[np.intp], num_outputs: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        early = np.flatnonzero(num_outputs < self._min_tokens[rows])
        if not len(early):
            return _NO_IDS, _NO_IDS
        ids = [self._end_ids[row] for row in rows[early]]
        return np.repeat(early, [len(one) for one in ids]), np.concatenate(ids)
