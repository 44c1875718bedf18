"""From rows of the batch to flat tensors: one entry a token, requests one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from corefw.errors import EngineError
from corefw.runtime.model_runner.batch_state import BatchState
from corefw.runtime.model_runner.host_buffer import HostBuffer

__all__ = ["InputPreparation", "StepInputs"]

NO_SLOT = -1


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step's tensors, valid until the next step is prepared. T tokens, R requests, S of them get a token.

    Attributes:
        rows: intp [R], rows of the batch, rising.
        num_tokens: T.
        input_ids: int64 [T] on the device.
        positions: int64 [T] on the device.
        query_starts: int32 [R + 1] on the CPU.
        seq_lens: int32 [R] on the CPU, context length after the step.
        block_tables: by KV-cache group int32 [R, M] on the device, padded with the null block.
        slot_mappings: by KV-cache group int64 [T] on the device.
        sampled: intp [S], which of the R requests get a token: those whose last known token is computed.
        logits_indices: int64 [S] on the device, the positions in T of their last tokens.
    """

    rows: npt.NDArray[np.intp]
    num_tokens: int
    input_ids: torch.Tensor
    positions: torch.Tensor
    query_starts: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: tuple[torch.Tensor, ...]
    slot_mappings: tuple[torch.Tensor, ...]
    sampled: npt.NDArray[np.intp]
    logits_indices: torch.Tensor


class InputPreparation:
    """Owns the buffers that steps are written into.

    Args:
        device: where the model runs.
        max_num_tokens: tokens of a step at most.
        max_num_seqs: requests of a step at most.
        max_num_blocks: blocks of a request at most.
        num_groups: KV-cache groups.
        block_size: tokens a block.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        max_num_tokens: int,
        max_num_seqs: int,
        max_num_blocks: int,
        num_groups: int,
        block_size: int,
    ) -> None:
        self._block_size = block_size
        self._max_num_tokens = max_num_tokens
        self._input_ids = HostBuffer(max_num_tokens, torch.int64, device)
        self._positions = HostBuffer(max_num_tokens, torch.int64, device)
        self._logits_indices = HostBuffer(max_num_seqs, torch.int64, device)
        self._query_starts = HostBuffer(max_num_seqs + 1, torch.int32, torch.device("cpu"))
        self._seq_lens = HostBuffer(max_num_seqs, torch.int32, torch.device("cpu"))
        self._slots = [HostBuffer(max_num_tokens, torch.int64, device) for _ in range(num_groups)]
        self._tables = [HostBuffer(max_num_seqs * max_num_blocks, torch.int32, device) for _ in range(num_groups)]

    def prepare(self, batch: BatchState, num_scheduled_tokens: Mapping[str, int]) -> StepInputs:
        """Lay out the step. Requests come in row order, whatever order the scheduler named them in."""
        rows = batch.rows(num_scheduled_tokens)
        order = np.argsort(rows)
        rows = rows[order]
        counts = np.fromiter(num_scheduled_tokens.values(), dtype=np.int64, count=len(rows))[order]
        starts, ends = batch.num_computed[rows], batch.num_computed[rows] + counts
        self._check(batch, rows, counts, ends)
        query_starts = np.concatenate(([0], np.cumsum(counts)))
        num_tokens = int(query_starts[-1])
        request_T = np.repeat(np.arange(len(rows)), counts)
        positions_T = np.arange(num_tokens) + np.repeat(starts - query_starts[:-1], counts)
        sampled = np.flatnonzero(ends == batch.tokens.lengths[rows])
        return StepInputs(
            rows=rows,
            num_tokens=num_tokens,
            input_ids=self._input_ids.upload(batch.tokens.values[rows[request_T], positions_T]),
            positions=self._positions.upload(positions_T),
            query_starts=self._query_starts.upload(query_starts),
            seq_lens=self._seq_lens.upload(ends),
            block_tables=self._upload_tables(batch, rows, int(ends.max())),
            slot_mappings=self._upload_slots(batch, rows[request_T], positions_T),
            sampled=sampled,
            logits_indices=self._logits_indices.upload(query_starts[sampled + 1] - 1),
        )

    def _check(
        self,
        batch: BatchState,
        rows: npt.NDArray[np.intp],
        counts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
    ) -> None:
        """Writing outside a request's own blocks would corrupt another's; better fail the step."""
        if counts.sum() > self._max_num_tokens:
            raise EngineError(f"the step has {counts.sum()} tokens, but at most {self._max_num_tokens} were announced")
        num_slots = np.min([table.lengths[rows] for table in batch.block_tables], axis=0) * self._block_size
        bad = np.flatnonzero((counts < 1) | (ends > batch.tokens.lengths[rows]) | (ends > num_slots))
        if len(bad):
            row = rows[bad[0]]
            raise EngineError(
                f"request {batch.request_ids[row]}: {counts[bad[0]]} tokens up to position {ends[bad[0]]} scheduled, "
                f"but {batch.tokens.lengths[row]} tokens are known and blocks hold {num_slots[bad[0]]}"
            )

    def _upload_tables(self, batch: BatchState, rows: npt.NDArray[np.intp], longest: int) -> tuple[torch.Tensor, ...]:
        """Tables as wide as the longest request of the step needs."""
        width = -(-longest // self._block_size)
        tables = zip(self._tables, batch.block_tables, strict=True)
        return tuple(
            buffer.upload(table.values[rows, :width].reshape(-1)).view(len(rows), width) for buffer, table in tables
        )

    def _upload_slots(
        self, batch: BatchState, rows_T: npt.NDArray[np.intp], positions_T: npt.NDArray[np.int64]
    ) -> tuple[torch.Tensor, ...]:
        index_T, offset_T = np.divmod(positions_T, self._block_size)
        groups = zip(self._slots, batch.block_tables, strict=True)
        return tuple(
            buffer.upload(table.values[rows_T, index_T].astype(np.int64) * self._block_size + offset_T, tail=NO_SLOT)
            for buffer, table in groups
        )
