from __future__ import annotations

import time

import pytest
import torch

from corefw.config.rank_grid import RankGrid
from corefw.errors import EngineDeadError, EngineError
from corefw.runtime.distributed.groups import RankGroups
from corefw.runtime.distributed.pipeline_stage import PipelineStage
from tests.runtime.distributed.ranks import on_each_rank


def _relay(steps: list[dict[str, torch.Tensor]]) -> list[list[dict[str, torch.Tensor]]]:
    """What each stage of three gets, when the first sends these and the others hand on."""

    def work(groups: RankGroups) -> list[dict[str, torch.Tensor]]:
        stage, received = groups.pipeline, []
        for step in steps:
            tensors = step if stage.is_first else stage.recv()
            received.append(tensors)
            if not stage.is_last:
                stage.send(tensors)
        stage.flush()
        return received

    return on_each_rank(RankGrid(pipeline=3), work)


def _equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return list(left) == list(right) and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left
    )


def test_stages_get_what_was_sent_in_its_order() -> None:
    steps: list[dict[str, torch.Tensor]] = [
        {"hidden": torch.randn(5, 4), "residual": torch.randn(5, 4).bfloat16()},
        {"hidden": torch.randn(1, 4), "residual": torch.randn(1, 4).bfloat16()},
        {},
        {"hidden": torch.randn(0, 4), "scale": torch.tensor(2.5), "ids": torch.arange(3), "mask": torch.tensor([True])},
        {"hidden": torch.randn(7, 4), "residual": torch.randn(7, 4).bfloat16()},
        {"a view": torch.randn(3, 6).t()},
    ]
    for received in _relay(steps):
        assert [_equal(got, sent) for got, sent in zip(received, steps, strict=True)] == [True] * len(steps)


def test_a_description_goes_along_once() -> None:
    def work(groups: RankGroups) -> int:
        stage = groups.pipeline
        for num_rows in (3, 2, 9):
            if stage.is_first:
                stage.send({"hidden": torch.ones(num_rows, 2)})
            else:
                stage.recv()
        num_pending = len(stage._pending)
        stage.flush()
        return num_pending

    # Of the last step: the numbers and the tensor; no description.
    assert on_each_rank(RankGrid(pipeline=2), work)[0] == 2


def test_a_stage_goes_on_computing_while_the_next_one_is_busy() -> None:
    def work(groups: RankGroups) -> bool:
        if groups.pipeline.is_first:
            groups.pipeline.send({"hidden": torch.ones(1000, 1000)})  # would wait for the barrier, if it waited
        groups.world.barrier()
        if not groups.pipeline.is_first:
            return bool(groups.pipeline.recv()["hidden"].sum() == 1e6)
        groups.pipeline.flush()
        return True

    assert on_each_rank(RankGrid(pipeline=2), work) == [True, True]


def test_the_ends_have_nobody_beyond_them() -> None:
    def work(groups: RankGroups) -> str:
        beyond = groups.pipeline.recv if groups.pipeline.is_first else lambda: groups.pipeline.send({})
        with pytest.raises(EngineError) as caught:
            beyond()
        return str(caught.value)

    assert on_each_rank(RankGrid(pipeline=2), work) == [
        "the first stage of the pipeline has nobody to receive from",
        "the last stage of the pipeline has nobody to send to",
    ]


def test_a_pipeline_of_one_hands_nothing_on() -> None:
    with pytest.raises(EngineError, match="has one stage"):
        PipelineStage().send({})


def test_a_stage_that_sends_nothing_is_told_by_its_axis() -> None:
    def work(groups: RankGroups) -> None:
        if groups.pipeline.is_first:
            time.sleep(1.5)
            return
        with pytest.raises(
            EngineDeadError, match=r"rank 1: receive of the pipeline ranks 0, 1 .* didn't answer for 0\.5 s"
        ):
            groups.pipeline.recv()

    on_each_rank(RankGrid(pipeline=2), work, timeout_s=0.5)


def test_too_many_tensors_are_refused() -> None:
    def work(groups: RankGroups) -> bool:
        if groups.pipeline.is_first:
            with pytest.raises(EngineError, match="hands 31 tensors on; at most 30 fit"):
                groups.pipeline.send({str(i): torch.ones(1) for i in range(31)})
        return True

    assert on_each_rank(RankGrid(pipeline=2), work) == [True, True]
