"""Embeddings reach the tokens of a step that they belong to, however prompts are cut, and are kept no longer."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.errors import ConfigError
from corefw.messages.arrays import Array
from corefw.messages.request import EmbeddingSpan
from corefw.messages.sampling import SamplingParams
from corefw.messages.scheduling import CachedRequests, NewRequest, SchedulerOutput
from corefw.runtime.model_runner.batch_state import BatchState
from corefw.runtime.model_runner.input_preparation import InputPreparation, TableLayout
from corefw.runtime.model_runner.prompt_embeds import HeldEmbeds, PlacedEmbeds, check_accepts_embeds
from corefw.testing.configs import fake_config

CPU = torch.device("cpu")
LENGTH = 24


def spans_of(marked: list[bool]) -> tuple[EmbeddingSpan, ...]:
    """Each marked position has its own number as its embedding."""
    edges = [0, *(i for i in range(1, len(marked)) if marked[i] != marked[i - 1]), len(marked)]
    runs = [range(a, b) for a, b in pairwise(edges) if marked[a]]
    return tuple(
        EmbeddingSpan(offset=run[0], values=Array.from_numpy(np.array(run, np.float32)[:, None])) for run in runs
    )


def new(name: str, spans: tuple[EmbeddingSpan, ...], num_computed: int) -> NewRequest:
    return NewRequest(
        request_id=name,
        prompt_ids=[0] * LENGTH,
        output_ids=[],
        params=SamplingParams(seed=0),
        eos_ids=(),
        block_ids=[[1]],
        num_computed_tokens=num_computed,
        prompt_embeds=spans,
    )


class Runner:
    """Batch, preparation and embeddings, without a model."""

    def __init__(self) -> None:
        self.batch = BatchState(4, 1)
        self.held = HeldEmbeds(CPU)
        self.preparation = InputPreparation(
            CPU, max_num_tokens=100, max_num_seqs=4, max_model_len=64, groups=[TableLayout(64)]
        )

    def step(
        self,
        counts: dict[str, int],
        *,
        new_requests: list[NewRequest] | None = None,
        computed: dict[str, int] | None = None,
        preempted: list[str] | None = None,
    ) -> list[float]:
        """One number a token of the step: its embedding, or NaN where it has none."""
        computed = computed or {}
        scheduled = SchedulerOutput(
            step=1,
            new_requests=new_requests or [],
            cached_requests=CachedRequests(
                request_ids=list(computed),
                num_computed_tokens=list(computed.values()),
                num_output_tokens=[0] * len(computed),
                new_block_ids=[[[]]] * len(computed),
            ),
            num_scheduled_tokens=counts,
            total_num_scheduled_tokens=sum(counts.values()),
            finished_request_ids=[],
            preempted_request_ids=preempted or [],
            block_ids_to_zero=[[]],
        )
        self.batch.update(scheduled)
        self.held.update(scheduled)
        placed = self.held.of_step(self.batch, self.preparation.prepare(self.batch, counts))
        return laid_out(placed, sum(counts.values()))


def laid_out(placed: object, num_tokens: int) -> list[float]:
    values = [float("nan")] * num_tokens
    assert isinstance(placed, list | tuple)
    for item in placed:
        assert isinstance(item, PlacedEmbeds)
        for index, value in enumerate(item.values[:, 0].tolist(), start=item.start):
            assert np.isnan(values[index]), "a token got two embeddings"
            values[index] = value
    return values


@given(marked=st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH), cuts=st.sets(st.integers(1, LENGTH - 1)),
       hit=st.integers(0, LENGTH - 1))  # fmt: skip
@settings(deadline=None, derandomize=True, max_examples=60)
def test_chunks_get_what_is_theirs_beside_other_requests(marked: list[bool], cuts: set[int], hit: int) -> None:
    runner = Runner()
    runner.step({"other": 1}, new_requests=[new("other", (), 0)])
    edges = [hit, *sorted(cut for cut in cuts if cut > hit), LENGTH]
    for start, stop in pairwise(edges):
        if start == hit:
            found = runner.step(
                {"other": 1, "r": stop - start}, new_requests=[new("r", spans_of(marked), hit)], computed={"other": 1}
            )
        else:
            found = runner.step({"other": 1, "r": stop - start}, computed={"other": 1, "r": start})
        expected = [float("nan")] + [float(i) if marked[i] else float("nan") for i in range(start, stop)]
        np.testing.assert_array_equal(found, expected)
    assert not runner.held._spans


def test_a_preempted_request_comes_back_with_its_embeddings() -> None:
    runner, spans = Runner(), spans_of([True] * LENGTH)
    runner.step({"r": 10}, new_requests=[new("r", spans, 0)])
    runner.step({"other": 1}, new_requests=[new("other", (), 0)], preempted=["r"])
    assert not runner.held._spans
    assert runner.step({"r": 5}, new_requests=[new("r", spans, 3)]) == [3.0, 4.0, 5.0, 6.0, 7.0]


def test_a_step_without_embeddings_costs_nothing() -> None:
    held = HeldEmbeds(CPU)
    assert held.of_step(SimpleNamespace(), SimpleNamespace()) == ()  # type: ignore[arg-type]  # looks at neither


class TakesNone:
    """A model of two arguments."""


class Takes:
    accepts_embeds = True


def test_a_model_that_does_not_declare_it_stops_the_start_with_the_flag() -> None:
    check_accepts_embeds(TakesNone(), fake_config())  # type: ignore[arg-type]
    check_accepts_embeds(Takes(), fake_config(enable_prompt_embeds=True))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"--enable-prompt-embeds: .*TakesNone.* accepts_embeds = True"):
        check_accepts_embeds(TakesNone(), fake_config(enable_prompt_embeds=True))  # type: ignore[arg-type]
