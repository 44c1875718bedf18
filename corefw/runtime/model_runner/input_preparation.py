"""From rows of the batch to flat tensors: one entry a token, requests one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from corefw.errors import EngineError
from corefw.runtime.model_runner.batch_state import BatchState
from corefw.runtime.model_runner.host_buffer import HostBuffer, TableBuffer

__all__ = ["InputPreparation", "StepInputs", "TableLayout"]

NO_SLOT = -1
NULL_BLOCK = 0


@dataclass(frozen=True, slots=True)
class TableLayout:
    """What the block tables of one KV-cache group are like.

    Attributes:
        block_size: tokens a block.
        sliding_window: tokens that a query sees, where the scheduler gives back the blocks before it; else None.
    """

    block_size: int
    sliding_window: int | None = None


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
        block_tables: by KV-cache group int32 [R, M] on the device, padded with the null block, which also stands
            in for blocks that the scheduler has given back: another request may be writing to them.
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
        max_model_len: tokens of a request at most.
        groups: one layout a KV-cache group.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        max_num_tokens: int,
        max_num_seqs: int,
        max_model_len: int,
        groups: Sequence[TableLayout],
    ) -> None:
        self._groups = tuple(groups)
        self._max_num_tokens = max_num_tokens
        self._counting = np.arange(max_num_tokens + 1, dtype=np.int64)
        self._input_ids = HostBuffer(max_num_tokens, torch.int64, device)
        self._positions = HostBuffer(max_num_tokens, torch.int64, device)
        self._logits_indices = HostBuffer(max_num_seqs, torch.int64, device)
        self._query_starts = HostBuffer(max_num_seqs + 1, torch.int32, torch.device("cpu"))
        self._seq_lens = HostBuffer(max_num_seqs, torch.int32, torch.device("cpu"))
        self._slots = [HostBuffer(max_num_tokens, torch.int64, device) for _ in self._groups]
        self._tables = [
            TableBuffer(max_num_seqs, -(-max_model_len // group.block_size), device) for group in self._groups
        ]
        self._views: dict[tuple[int, int], dict[str, Any]] = {}

    def prepare(self, batch: BatchState, num_scheduled_tokens: Mapping[str, int]) -> StepInputs:
        """Lay out the step. Requests come in row order, whatever order the scheduler named them in."""
        rows = batch.rows(num_scheduled_tokens)
        counts = np.array(list(num_scheduled_tokens.values()), dtype=np.int64)
        num_tokens = int(counts.sum())
        is_decode = num_tokens == len(rows) and bool((counts == 1).all())
        if is_decode:
            rows.sort()
        else:
            order = np.argsort(rows)
            rows, counts = rows[order], counts[order]
        starts = batch.num_computed[rows]
        ends = starts + counts
        num_known = batch.tokens.lengths[rows]
        self._check(batch, rows, num_tokens, counts, ends, num_known)
        if is_decode:
            query_starts, rows_T, positions_T = self._counting[: num_tokens + 1], rows, starts
        else:
            query_starts = np.concatenate(([0], np.cumsum(counts)))
            rows_T = np.repeat(rows, counts)
            positions_T = self._counting[:num_tokens] + np.repeat(starts - query_starts[:-1], counts)
        sampled = np.flatnonzero(ends == num_known)
        return StepInputs(
            rows=rows,
            num_tokens=num_tokens,
            input_ids=self._input_ids.upload(batch.tokens.values[rows_T, positions_T]),
            positions=self._positions.upload(positions_T),
            query_starts=self._query_starts.upload(query_starts, tail=num_tokens),
            seq_lens=self._seq_lens.upload(ends),
            block_tables=self._upload_tables(batch, rows, starts, int(ends.max())),
            slot_mappings=self._upload_slots(batch, rows_T, positions_T),
            sampled=sampled,
            logits_indices=self._logits_indices.upload(query_starts[sampled + 1] - 1),
        )

    def padded(self, inputs: StepInputs, num_tokens: int, num_requests: int) -> StepInputs:
        """The step that was prepared last, as a larger one: tensors at the same places, with their tails.

        The tokens behind the step's own are id 0 at position 0 and have no slot, the requests have no tokens, no
        context and the null block; block tables have full width. ``inputs.num_tokens`` stays.
        """
        size = num_tokens, num_requests
        if size not in self._views:  # always at the same places, so they are made once
            self._views[size] = {
                "input_ids": self._input_ids.first(num_tokens),
                "positions": self._positions.first(num_tokens),
                "query_starts": self._query_starts.first(num_requests + 1),
                "seq_lens": self._seq_lens.first(num_requests),
                "block_tables": tuple(table.first(num_requests) for table in self._tables),
                "slot_mappings": tuple(slots.first(num_tokens) for slots in self._slots),
            }
        return dataclasses.replace(inputs, **self._views[size])

    def blank(self, num_tokens: int, num_requests: int) -> StepInputs:
        """A step of padding alone."""
        nothing = np.zeros(0, dtype=np.int64)
        for buffer in (self._input_ids, self._positions, self._query_starts, self._seq_lens, self._logits_indices):
            buffer.upload(nothing)
        for slots in self._slots:
            slots.upload(nothing, tail=NO_SLOT)
        for table in self._tables:
            table.clear()
        empty = StepInputs(
            rows=nothing,
            num_tokens=0,
            input_ids=self._input_ids.first(0),
            positions=self._positions.first(0),
            query_starts=self._query_starts.first(1),
            seq_lens=self._seq_lens.first(0),
            block_tables=(),
            slot_mappings=(),
            sampled=nothing,
            logits_indices=self._logits_indices.first(0),
        )
        return self.padded(empty, num_tokens, num_requests)

    def _check(
        self,
        batch: BatchState,
        rows: npt.NDArray[np.intp],
        num_tokens: int,
        counts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        num_known: npt.NDArray[np.int64],
    ) -> None:
        """Writing outside a request's own blocks would corrupt another's; better fail the step."""
        if num_tokens > self._max_num_tokens:
            raise EngineError(f"the step has {num_tokens} tokens, but at most {self._max_num_tokens} were announced")
        tables = zip(batch.block_tables, self._groups, strict=True)
        slots = [table.lengths[rows] * group.block_size for table, group in tables]
        num_slots = slots[0] if len(slots) == 1 else np.minimum.reduce(slots)
        bad = (counts < 1) | (ends > num_known) | (ends > num_slots)
        if bad.any():
            first = int(bad.argmax())
            raise EngineError(
                f"request {batch.request_ids[rows[first]]}: {counts[first]} tokens up to position {ends[first]} "
                f"scheduled, but {num_known[first]} tokens are known and blocks hold {num_slots[first]}"
            )

    def _upload_tables(
        self, batch: BatchState, rows: npt.NDArray[np.intp], starts: npt.NDArray[np.int64], longest: int
    ) -> tuple[torch.Tensor, ...]:
        """Tables as wide as the longest request of the step needs."""
        uploaded = []
        for buffer, table, group in zip(self._tables, batch.block_tables, self._groups, strict=True):
            num_unread = None
            if group.sliding_window is not None:
                num_unread = np.maximum(0, starts + 1 - group.sliding_window) // group.block_size
            uploaded.append(buffer.upload(rows, table, -(-longest // group.block_size), num_unread))
        return tuple(uploaded)

    def _upload_slots(
        self, batch: BatchState, rows_T: npt.NDArray[np.intp], positions_T: npt.NDArray[np.int64]
    ) -> tuple[torch.Tensor, ...]:
        uploaded = []
        for buffer, table, group in zip(self._slots, batch.block_tables, self._groups, strict=True):
            index_T, offset_T = np.divmod(positions_T, group.block_size)
            slots_T = table.values[rows_T, index_T] * np.int64(group.block_size) + offset_T
            uploaded.append(buffer.upload(slots_T, tail=NO_SLOT))
        return tuple(uploaded)
