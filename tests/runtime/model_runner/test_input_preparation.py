from __future__ import annotations

import torch

from corefw.messages.sampling import SamplingParams
from corefw.messages.scheduling import NewRequest
from corefw.runtime.model_runner.batch_state import BatchState
from corefw.runtime.model_runner.host_buffer import HostBuffer
from corefw.runtime.model_runner.input_preparation import InputPreparation, TableLayout

CPU = torch.device("cpu")


def _batch() -> BatchState:
    """Two groups, blocks of 4 tokens: ``a`` decodes at position 6, ``b`` is a prompt of 9 with 4 tokens cached."""
    batch = BatchState(4, 2)
    for request_id, prompt, outputs, blocks, computed in (
        ("a", [10, 11, 12, 13, 14], [15, 16], [[3, 7], [8, 9]], 6),
        ("b", list(range(20, 29)), [], [[5, 2, 6], [1, 4, 10]], 4),
        ("c", [30], [], [[11], [11]], 0),
    ):
        batch.add(
            NewRequest(
                request_id=request_id,
                prompt_ids=prompt,
                output_ids=outputs,
                params=SamplingParams(seed=0),
                eos_ids=(),
                block_ids=blocks,
                num_computed_tokens=computed,
            )
        )
    return batch


def _preparation() -> InputPreparation:
    return InputPreparation(CPU, max_num_tokens=16, max_num_seqs=4, max_model_len=32, groups=[TableLayout(4)] * 2)


def test_a_step_is_laid_out_one_request_after_the_other_in_row_order() -> None:
    inputs = _preparation().prepare(_batch(), {"b": 5, "a": 1})
    assert inputs.rows.tolist() == [0, 1]
    assert inputs.num_tokens == 6
    assert inputs.input_ids.tolist() == [16, 24, 25, 26, 27, 28]
    assert inputs.positions.tolist() == [6, 4, 5, 6, 7, 8]
    assert inputs.query_starts.tolist() == [0, 1, 6]
    assert inputs.seq_lens.tolist() == [7, 9]
    assert [slots.tolist() for slots in inputs.slot_mappings] == [
        [7 * 4 + 2, 8, 9, 10, 11, 24],
        [9 * 4 + 2, 16, 17, 18, 19, 40],
    ]
    assert inputs.sampled.tolist() == [0, 1]
    assert inputs.logits_indices.tolist() == [0, 5]


def test_block_tables_are_padded_with_the_null_block() -> None:
    inputs = _preparation().prepare(_batch(), {"a": 1, "b": 5, "c": 1})
    assert [table.tolist() for table in inputs.block_tables] == [
        [[3, 7, 0], [5, 2, 6], [11, 0, 0]],
        [[8, 9, 0], [1, 4, 10], [11, 0, 0]],
    ]


def test_groups_have_block_sizes_of_their_own() -> None:
    layouts = [TableLayout(4), TableLayout(8)]
    preparation = InputPreparation(CPU, max_num_tokens=16, max_num_seqs=4, max_model_len=32, groups=layouts)
    inputs = preparation.prepare(_batch(), {"a": 1, "b": 5})
    assert [table.tolist() for table in inputs.block_tables] == [[[3, 7, 0], [5, 2, 6]], [[8, 9], [1, 4]]]
    assert inputs.slot_mappings[1].tolist() == [8 * 8 + 6, 8 + 4, 8 + 5, 8 + 6, 8 + 7, 4 * 8]


def test_blocks_before_a_window_are_the_null_block_though_the_batch_remembers_them() -> None:
    layouts = [TableLayout(4), TableLayout(4, sliding_window=2)]
    preparation = InputPreparation(CPU, max_num_tokens=16, max_num_seqs=4, max_model_len=32, groups=layouts)
    inputs = preparation.prepare(_batch(), {"a": 1, "b": 5})
    # "a" reads positions 5 and 6; the first token of "b" reads positions 3 and 4.
    assert inputs.block_tables[1].tolist() == [[0, 9, 0], [1, 4, 10]]
    assert inputs.block_tables[0].tolist() == [[3, 7, 0], [5, 2, 6]]


def test_only_requests_whose_last_known_token_is_computed_are_sampled() -> None:
    inputs = _preparation().prepare(_batch(), {"a": 1, "b": 4, "c": 1})
    assert inputs.sampled.tolist() == [0, 2]
    assert inputs.logits_indices.tolist() == [0, 5]


def test_dtypes_are_those_of_the_contract() -> None:
    inputs = _preparation().prepare(_batch(), {"a": 1})
    assert inputs.input_ids.dtype == inputs.positions.dtype == inputs.logits_indices.dtype == torch.int64
    assert inputs.query_starts.dtype == inputs.seq_lens.dtype == inputs.block_tables[0].dtype == torch.int32
    assert inputs.slot_mappings[0].dtype == torch.int64


def test_a_shorter_step_leaves_nothing_of_a_longer_one_behind() -> None:
    preparation = _preparation()
    long = preparation.prepare(_batch(), {"a": 1, "b": 5}).slot_mappings[0]
    short = preparation.prepare(_batch(), {"a": 1}).slot_mappings[0]
    assert short.data_ptr() == long.data_ptr()
    assert torch.as_strided(short, (16,), (1,)).tolist() == [30, *[-1] * 15]


def test_a_buffer_clears_what_lies_behind_the_values() -> None:
    buffer = HostBuffer(5, torch.int32, CPU)
    assert buffer.upload(torch.arange(5).numpy()).tolist() == [0, 1, 2, 3, 4]
    view = buffer.upload(torch.arange(2).numpy(), tail=-1)
    assert view.tolist() == [0, 1]
    assert torch.as_strided(view, (5,), (1,)).tolist() == [0, 1, -1, -1, -1]


def test_a_padded_step_has_its_tensors_where_every_other_one_has_them_with_cleared_tails() -> None:
    preparation, batch = _preparation(), _batch()
    small = preparation.prepare(batch, {"c": 1})
    before = preparation.padded(small, 2, 2)
    preparation.prepare(batch, {"a": 1, "b": 5, "c": 1})  # wider, and more of it
    after = preparation.padded(preparation.prepare(batch, {"a": 1}), 4, 3)
    assert (after.num_tokens, after.rows.tolist(), after.sampled.tolist()) == (1, [0], [0])
    assert after.input_ids.tolist()[0] == 16
    assert len(after.input_ids) == len(after.positions) == 4
    assert after.query_starts.tolist() == [0, 1, 1, 1]
    assert after.seq_lens.tolist() == [7, 0, 0]
    assert [slots.tolist() for slots in after.slot_mappings] == [[30, -1, -1, -1], [38, -1, -1, -1]]
    assert [table.tolist() for table in after.block_tables] == [
        [[3, 7, *[0] * 6], [0] * 8, [0] * 8],
        [[8, 9, *[0] * 6], [0] * 8, [0] * 8],
    ]
    for name in ("input_ids", "positions", "query_starts", "seq_lens"):
        assert getattr(before, name).data_ptr() == getattr(after, name).data_ptr(), name
    for old, new in zip(
        (*before.block_tables, *before.slot_mappings), (*after.block_tables, *after.slot_mappings), strict=True
    ):
        assert old.data_ptr() == new.data_ptr()
        assert old.stride() == new.stride()


def test_a_blank_step_is_padding_alone_whatever_was_there_before() -> None:
    preparation = _preparation()
    preparation.prepare(_batch(), {"a": 1, "b": 5, "c": 1})
    blank = preparation.blank(3, 2)
    assert (blank.num_tokens, len(blank.rows), len(blank.sampled)) == (0, 0, 0)
    assert (blank.query_starts.tolist(), blank.seq_lens.tolist()) == ([0, 0, 0], [0, 0])
    assert [slots.tolist() for slots in blank.slot_mappings] == [[-1, -1, -1]] * 2
    assert all(not table.any() and table.shape == (2, 8) for table in blank.block_tables)
