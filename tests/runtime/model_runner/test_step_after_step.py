"""Steps one after the other in the same buffers, which are written where something changed."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from corefw.messages.sampling import SamplingParams
from corefw.messages.scheduling import CachedRequests, NewRequest
from corefw.runtime.model_runner.batch_state import BatchState
from corefw.runtime.model_runner.host_buffer import HostBuffer, TableBuffer
from corefw.runtime.model_runner.input_preparation import InputPreparation, StepInputs, TableLayout
from corefw.runtime.model_runner.ragged_rows import RaggedRows

_BLOCK = 4
_MAX_LEN = 64
_WINDOWS = (None, 6)


def _preparation() -> InputPreparation:
    return InputPreparation(
        torch.device("cpu"),
        max_num_tokens=64,
        max_num_seqs=6,
        max_model_len=_MAX_LEN,
        groups=[TableLayout(_BLOCK, sliding_window=window) for window in _WINDOWS],
    )


def _grown(batch: BatchState, rng: random.Random, request_id: str) -> None:
    """A request of the batch after a step of its own: all known tokens computed, one more known, blocks for it."""
    row = int(batch.rows([request_id])[0])
    known = int(batch.tokens.lengths[row])
    batch.append_tokens(np.array([row]), np.array([rng.randrange(900)]))
    missing = -(-(known + 1) // _BLOCK) - int(batch.block_tables[0].lengths[row])
    fresh = [[rng.randrange(1, 500) for _ in range(missing)] for _ in _WINDOWS]
    batch._go_on(
        CachedRequests(
            request_ids=[request_id],
            num_computed_tokens=[known],
            num_output_tokens=[known + 1 - int(batch.num_prompt[row])],
            new_block_ids=[fresh],
        )
    )


def _new(rng: random.Random, request_id: str) -> NewRequest:
    length = rng.randrange(1, 20)
    return NewRequest(
        request_id=request_id,
        prompt_ids=[rng.randrange(900) for _ in range(length)],
        output_ids=[],
        params=SamplingParams(seed=0),
        eos_ids=(),
        block_ids=[[rng.randrange(1, 500) for _ in range(-(-length // _BLOCK))] for _ in _WINDOWS],
        num_computed_tokens=0,
    )


def _shown(inputs: StepInputs) -> list[object]:
    tensors = (inputs.input_ids, inputs.positions, inputs.query_starts, inputs.seq_lens, inputs.logits_indices)
    parts = [tensor.tolist() for tensor in (*tensors, *inputs.block_tables, *inputs.slot_mappings)]
    return [inputs.rows.tolist(), inputs.num_tokens, inputs.sampled.tolist(), *parts]


@pytest.mark.parametrize("seed", range(8))
def test_whoever_comes_and_goes_a_step_is_laid_out_as_in_buffers_that_were_never_used(seed: int) -> None:
    rng, batch, preparation = random.Random(seed), BatchState(6, len(_WINDOWS)), _preparation()
    for number in range(60):
        names = list(batch.request_ids)
        if names and rng.random() < 0.2:
            batch.remove(rng.choice(names))
        if batch.num_requests < 6 and (not batch.num_requests or rng.random() < 0.3):
            batch.add(_new(rng, f"request-{number}"))
        step = rng.sample(batch.request_ids, rng.randrange(1, batch.num_requests + 1))
        rows = batch.rows(step)
        counts = (batch.tokens.lengths[rows] - batch.num_computed[rows]).tolist()
        scheduled = dict(zip(step, counts, strict=True))
        assert _shown(preparation.prepare(batch, scheduled)) == _shown(_preparation().prepare(batch, scheduled))
        for request_id, row in zip(step, rows.tolist(), strict=True):
            if batch.tokens.lengths[row] < _MAX_LEN - 1:
                _grown(batch, rng, request_id)
            else:
                batch.remove(request_id)


def test_what_a_larger_step_left_behind_the_values_is_the_tail_whichever_it_was() -> None:
    buffer = HostBuffer(6, torch.int64, torch.device("cpu"))
    buffer.upload(np.array([1, 2, 3, 4]), tail=-1)
    assert buffer.upload(np.array([5]), tail=-1).tolist() == [5]
    assert buffer.first(6).tolist() == [5, -1, -1, -1, -1, -1]
    buffer.upload(np.array([6, 7]), tail=9)
    assert buffer.first(6).tolist() == [6, 7, 9, 9, 9, 9]
    buffer.upload(np.array([8]))
    assert buffer.first(6).tolist() == [8, 0, 0, 0, 0, 0]


def test_rows_of_another_table_are_written_though_they_have_the_same_numbers() -> None:
    buffer = TableBuffer(2, 4, torch.device("cpu"))
    for items in ([1, 2, 3], [4]):
        table = RaggedRows(2)
        table.extend(0, items)
        buffer.upload(np.array([0]), table, 3)
        assert buffer.first(2).tolist() == [[*items, 0, 0, 0, 0][:4], [0, 0, 0, 0]]


def test_a_device_gets_the_zeros_behind_a_shorter_step_also_where_no_row_has_changed() -> None:
    table, buffer = RaggedRows(4), TableBuffer(4, 8, torch.device("cpu"))
    buffer._device = torch.zeros_like(buffer._host)  # memory of its own, as on a device
    for row in range(4):
        table.extend(row, [row + 1] * 3)
    buffer.upload(np.arange(4), table, 8)
    buffer.upload(np.arange(1), table, 8)
    assert torch.equal(buffer._device, buffer._host)
    assert buffer._device[1:].count_nonzero() == 0
