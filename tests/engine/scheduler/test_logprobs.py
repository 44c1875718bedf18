from __future__ import annotations

import numpy as np

from corefw.engine.scheduler.logprobs import LogprobsByRow
from corefw.messages.arrays import Array
from corefw.messages.outputs import PositionLogprobs, StepLogprobs


def make_step(rows: list[int], width: int) -> StepLogprobs:
    token_ids = np.arange(len(rows) * width, dtype=np.int32).reshape(len(rows), width)
    return StepLogprobs(
        rows,
        Array.from_numpy(token_ids),
        Array.from_numpy(-token_ids.astype(np.float32) / 2),
        Array.from_numpy(np.arange(1, len(rows) + 1, dtype=np.int32)),
    )


def test_a_row_gets_its_own_entries_in_plain_values() -> None:
    taken = LogprobsByRow(make_step([0, 3], 3)).row(3)
    assert taken is not None
    (position,) = taken.take(1, 2)
    assert position == PositionLogprobs([3, 4, 5], [-1.5, -2.0, -2.5], 2)
    assert all(type(value) is int for value in position.token_ids)
    assert all(type(value) is float for value in position.logprobs)


def test_a_row_that_wished_for_fewer_gets_its_first_columns() -> None:
    taken = LogprobsByRow(make_step([1], 4)).row(1)
    assert taken is not None
    assert taken.take(1, 0) == [PositionLogprobs([0], [0.0], 1)]


def test_a_row_with_several_tokens_gets_one_entry_for_each_that_was_taken() -> None:
    taken = LogprobsByRow(make_step([2, 5, 5, 5], 1)).row(5)
    assert taken is not None
    assert [position.token_ids for position in taken.take(2, 0)] == [[1], [2]]


def test_a_row_that_asked_for_nothing_has_nothing() -> None:
    assert LogprobsByRow(make_step([1], 1)).row(0) is None
    assert LogprobsByRow(None).row(0) is None
