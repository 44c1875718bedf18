from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.config.rank_grid import Axis, RankGrid, RankPlace
from corefw.errors import ConfigError

_SIZES = {
    Axis.TENSOR: "tensor",
    Axis.DECODE_CONTEXT: "decode_context",
    Axis.PREFILL_CONTEXT: "prefill_context",
    Axis.PIPELINE: "pipeline",
    Axis.DATA: "data",
}


def test_tensor_ranks_are_neighbours_and_replicas_lie_apart() -> None:
    grid = RankGrid(tensor=2, pipeline=2, data=2)
    assert grid.world_size == 8
    assert grid.replica_size == 4
    assert grid.groups(Axis.TENSOR) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert grid.groups(Axis.PIPELINE) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert grid.groups(Axis.DATA) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert grid.place(6) == RankPlace(rank=6, external=0, data=1, pipeline=1, prefill_context=0, tensor=0)
    assert grid.group_of(6, Axis.PIPELINE) == (4, 6)


def test_a_steps_output_is_told_by_the_first_rank_of_the_last_stage() -> None:
    assert RankGrid().output_rank == 0
    assert RankGrid(tensor=4).output_rank == 0
    grid = RankGrid(tensor=2, prefill_context=3, pipeline=3, data=2)
    place = grid.place(grid.output_rank)
    assert (place.data, place.pipeline, place.prefill_context, place.tensor) == (0, 2, 0, 0)


def test_decode_context_groups_lie_inside_tensor_groups() -> None:
    grid = RankGrid(tensor=4, decode_context=2, pipeline=2)
    assert grid.groups(Axis.DECODE_CONTEXT) == (
        (0, 1),
        (2, 3),
        (4, 5),
        (6, 7),
    )


@settings(deadline=None, max_examples=50, derandomize=True)
@given(st.tuples(*[st.integers(1, 3)] * 6), st.sampled_from(list(Axis)))
def test_every_rank_is_in_exactly_one_group_of_each_axis(sizes: tuple[int, ...], axis: Axis) -> None:
    tensor_groups, decode_context, pipeline, data, prefill_context, external = sizes
    grid = RankGrid(
        tensor=tensor_groups * decode_context,
        decode_context=decode_context,
        pipeline=pipeline,
        data=data,
        prefill_context=prefill_context,
        external=external,
    )
    groups = grid.groups(axis)
    assert sorted(rank for group in groups for rank in group) == list(range(grid.world_size))
    assert {len(group) for group in groups} == {getattr(grid, _SIZES[axis])}
    assert all(grid.group_of(rank, axis) == group for group in groups for rank in group)


@pytest.mark.parametrize("sizes", [{"tensor": 0}, {"data": -1}, {"tensor": 3, "decode_context": 2}])
def test_sizes_that_make_no_grid_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"size|divide"):
        RankGrid(**sizes)


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_rank_outside_the_grid_has_no_place(rank: int) -> None:
    with pytest.raises(ConfigError, match=f"no rank {rank} among 4"):
        RankGrid(tensor=4).place(rank)
