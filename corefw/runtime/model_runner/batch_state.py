"""The persistent batch: one row a request, changed by diffs, packed by moving the last row into a hole."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from corefw.errors import EngineError
from corefw.messages.scheduling import CachedRequests, NewRequest, SchedulerOutput
from corefw.runtime.model_runner.ragged_rows import RaggedRows
from corefw.runtime.model_runner.sampling_columns import SamplingColumns

__all__ = ["BatchState"]


class BatchState:
    """What the runner remembers between steps. Rows 0 … ``num_requests`` - 1 are in use.

    Attributes:
        request_ids: by row.
        tokens: known token ids, prompt and outputs, by row.
        num_prompt: prompt tokens, by row.
        num_computed: tokens whose KV is in the blocks when the step starts, by row.
        block_tables: by KV-cache group, block ids by row.
        sampling: sampling parameters by row.
    """

    def __init__(self, max_num_seqs: int, num_groups: int) -> None:
        self.request_ids: list[str] = []
        self.tokens = RaggedRows(max_num_seqs)
        self.num_prompt = np.zeros(max_num_seqs, dtype=np.int64)
        self.num_computed = np.zeros(max_num_seqs, dtype=np.int64)
        self.block_tables = tuple(RaggedRows(max_num_seqs) for _ in range(num_groups))
        self.sampling = SamplingColumns(max_num_seqs)
        self._rows: dict[str, int] = {}
        self._max_num_seqs = max_num_seqs

    @property
    def num_requests(self) -> int:
        return len(self.request_ids)

    @property
    def num_outputs(self) -> npt.NDArray[np.int64]:
        """Output tokens so far, by row."""
        return self.tokens.lengths - self.num_prompt

    def rows(self, request_ids: Iterable[str]) -> npt.NDArray[np.intp]:
        """Rows of requests that must be held."""
        try:
            return np.array(list(map(self._rows.__getitem__, request_ids)), dtype=np.intp)
        except KeyError as error:
            raise EngineError(f"the step names request {error.args[0]}, which this worker doesn't hold") from None

    def update(self, scheduled: SchedulerOutput) -> None:
        """Apply a step's diff: who left (unknown ids were never sent here), who came, who got blocks.

        Those who left go first: an id that was aborted may come back in the same step as another request.
        """
        for request_id in (*scheduled.finished_request_ids, *scheduled.preempted_request_ids):
            if request_id in self._rows:
                self.remove(request_id)
        for request in scheduled.new_requests:
            self.add(request)
        self._go_on(scheduled.cached_requests)

    def add(self, request: NewRequest) -> None:
        """Give a request the next row. A resumed one ends up as if it had been here all along."""
        row = self.num_requests
        if request.request_id in self._rows:
            raise EngineError(f"request {request.request_id} was sent as new, but this worker holds it")
        if row == self._max_num_seqs:
            raise EngineError(f"request {request.request_id} is one more than the batch's {self._max_num_seqs} rows")
        self.sampling.set(row, request)
        self.tokens.extend(row, request.prompt_ids)
        self.tokens.extend(row, request.output_ids)
        self.num_prompt[row] = len(request.prompt_ids)
        self.num_computed[row] = request.num_computed_tokens
        for table, block_ids in zip(self.block_tables, request.block_ids, strict=True):
            table.extend(row, block_ids)
        self.request_ids.append(request.request_id)
        self._rows[request.request_id] = row

    def remove(self, request_id: str) -> None:
        """Forget a request; the last row takes its place."""
        row = self._rows.pop(request_id)
        last = self.num_requests - 1
        last_id = self.request_ids.pop()
        if row == last:
            self._clear(row)
            return
        for rows in (self.tokens, *self.block_tables):
            rows.move(last, row)
        self.num_prompt[row] = self.num_prompt[last]
        self.num_computed[row] = self.num_computed[last]
        self.sampling.move(last, row)
        self.request_ids[row] = last_id
        self._rows[last_id] = row

    def append_tokens(self, rows: npt.NDArray[np.intp], token_ids: npt.NDArray[np.int64]) -> None:
        """One sampled token for each of those rows."""
        self.tokens.append(rows, token_ids)

    def _clear(self, row: int) -> None:
        for rows in (self.tokens, *self.block_tables):
            rows.clear(row)

    def _go_on(self, cached: CachedRequests) -> None:
        rows = self.rows(cached.request_ids)
        if cached.new_token_ids:
            self._learn(rows, cached)
        num_outputs = self.tokens.lengths[rows] - self.num_prompt[rows]
        wrong = np.flatnonzero(num_outputs != np.array(cached.num_output_tokens, dtype=np.int64))
        if len(wrong):
            first = int(wrong[0])
            raise EngineError(
                f"request {cached.request_ids[first]}: the scheduler knows {cached.num_output_tokens[first]} output "
                f"tokens, this worker {int(self.num_outputs[rows[first]])}"
            )
        self.num_computed[rows] = cached.num_computed_tokens
        fresh = [index for index, groups in enumerate(cached.new_block_ids) if any(groups)]
        for index in fresh:
            row = int(rows[index])
            for table, block_ids in zip(self.block_tables, cached.new_block_ids[index], strict=True):
                if block_ids:
                    table.extend(row, block_ids)

    def _learn(self, rows: npt.NDArray[np.intp], cached: CachedRequests) -> None:
        """Append what another pipeline stage sampled; whoever sampled it has it already."""
        num_missing = np.array(cached.num_output_tokens, dtype=np.int64) - self.num_outputs[rows]
        for index in np.flatnonzero(num_missing > 0).tolist():
            self.tokens.extend(int(rows[index]), cached.new_token_ids[index][-int(num_missing[index]) :])
