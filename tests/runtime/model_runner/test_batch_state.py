from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.errors import EngineError
from corefw.messages.sampling import SamplingParams
from corefw.messages.scheduling import NewRequest
from corefw.runtime.model_runner.batch_state import BatchState
from corefw.runtime.model_runner.ragged_rows import RaggedRows
from corefw.runtime.sampling.metadata import NO_LOGPROBS


def _request(request_id: str, number: int) -> NewRequest:
    return NewRequest(
        request_id=request_id,
        prompt_ids=list(range(1, 2 + number * 7)),
        output_ids=[90 + number] * (number % 3),
        params=SamplingParams(
            temperature=number / 4,
            top_p=1 - number / 200,
            top_k=number,
            min_p=number / 100,
            seed=number * 1000 - 5000,
            min_tokens=number % 4,
            stop_token_ids=(number, number + 1),
            logprobs=None if number % 2 else number,
        ),
        eos_ids=(2,),
        block_ids=[[number + 1] * (number % 5), [number + 2]],
        num_computed_tokens=number,
    )


def _row(state: BatchState, request_id: str) -> dict[str, Any]:
    """Everything the state says about a request, read through its public columns."""
    rows = state.rows([request_id])
    row = int(rows[0])
    metadata = state.sampling.gather(rows, state.tokens, state.num_prompt)
    assert state.request_ids[row] == request_id
    return {
        "tokens": state.tokens.values[row, : state.tokens.lengths[row]].tolist(),
        "num_prompt": int(state.num_prompt[row]),
        "num_computed": int(state.num_computed[row]),
        "blocks": [table.values[row, : table.lengths[row]].tolist() for table in state.block_tables],
        "sampling": [
            float(metadata.temperature[0]),
            float(metadata.top_p[0]),
            int(metadata.top_k[0]),
            float(metadata.min_p[0]),
            int(metadata.seeds[0]),
            int(metadata.positions[0]),
            int(metadata.num_logprobs[0]),
            metadata.banned.ids.tolist(),
        ],
    }


def _expected(request: NewRequest, appended: list[int], blocks: list[list[int]]) -> dict[str, Any]:
    params = request.params
    num_outputs = len(request.output_ids) + len(appended)
    early = num_outputs < params.min_tokens
    return {
        "tokens": [*request.prompt_ids, *request.output_ids, *appended],
        "num_prompt": len(request.prompt_ids),
        "num_computed": request.num_computed_tokens,
        "blocks": blocks,
        "sampling": [
            params.temperature,
            params.top_p,
            params.top_k,
            params.min_p,
            params.seed,
            num_outputs,
            NO_LOGPROBS if params.logprobs is None else params.logprobs,
            sorted({*request.eos_ids, *params.stop_token_ids}) if early else [],
        ],
    }


_ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "remove", "append", "blocks"]), st.integers(0, 50)), max_size=60
)


@given(actions=_ACTIONS)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_rows_stay_what_a_plain_dictionary_would_hold(actions: list[tuple[str, int]]) -> None:
    state = BatchState(5, 2)
    naive: dict[str, tuple[NewRequest, list[int], list[list[int]]]] = {}
    for index, (action, number) in enumerate(actions):
        names = list(naive)
        chosen = names[number % len(names)] if names else None
        if action == "add" and len(naive) < 5:
            request = _request(f"r{index}", number)
            state.add(request)
            naive[request.request_id] = (request, [], [list(ids) for ids in request.block_ids])
        elif action == "remove" and chosen:
            state.remove(chosen)
            del naive[chosen]
        elif action == "append" and names:
            some = names[: 1 + number % len(names)]
            state.append_tokens(state.rows(some), np.arange(len(some)) + number)
            for offset, name in enumerate(some):
                naive[name][1].append(number + offset)
        elif action == "blocks" and chosen:
            for table, ids in zip(state.block_tables, naive[chosen][2], strict=True):
                table.extend(int(state.rows([chosen])[0]), [number] * 150)
                ids += [number] * 150
        assert set(state.request_ids) == set(naive)
        assert state.num_requests == len(naive)
        for name, (request, appended, blocks) in naive.items():
            assert _row(state, name) == _expected(request, appended, blocks)
        for table in state.block_tables:
            beyond = np.arange(table.values.shape[1]) >= table.lengths[:, None]
            assert not table.values[beyond].any()


def test_rows_grow_beyond_their_first_capacity_and_keep_what_they_hold() -> None:
    rows = RaggedRows(2)
    rows.extend(0, list(range(1000)))
    rows.extend(1, [7])
    for item in range(600):
        rows.append(np.array([1, 0]), np.array([item, -item]))
    assert rows.values[0, : rows.lengths[0]].tolist() == [*range(1000), *(-item for item in range(600))]
    assert rows.values[1, : rows.lengths[1]].tolist() == [7, *range(600)]


def test_a_request_that_is_already_held_cant_be_added() -> None:
    state = BatchState(2, 2)
    state.add(_request("one", 1))
    with pytest.raises(EngineError, match="sent as new, but this worker holds it"):
        state.add(_request("one", 2))


def test_a_request_without_a_seed_is_refused() -> None:
    request = NewRequest(
        request_id="one",
        prompt_ids=[1],
        output_ids=[],
        params=SamplingParams(),
        eos_ids=(),
        block_ids=[[1]],
        num_computed_tokens=0,
    )
    with pytest.raises(EngineError, match="came without a seed"):
        BatchState(1, 1).add(request)
