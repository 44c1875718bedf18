"""When recordings are made, and what happens where they can't be."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Any

import pytest
import torch
from torch import nn

from corefw.interfaces.graphs import GraphCapture
from corefw.messages.sampling import SamplingParams
from corefw.messages.scheduling import NewRequest
from corefw.runtime.graphs.descriptor import GraphMode
from corefw.runtime.graphs.dispatcher import GraphDispatcher
from corefw.runtime.graphs.recorded_steps import RecordedSteps
from corefw.runtime.model_runner.attention_metadata import AttentionMetadataAssembly
from corefw.runtime.model_runner.batch_state import BatchState
from corefw.runtime.model_runner.input_preparation import InputPreparation, StepInputs, TableLayout
from corefw.testing.recording import CheapRecorder, TorchRecorder
from corefw.testing.static_attention import StaticAttention

CPU = torch.device("cpu")


class Rows(nn.Module):
    """A model without attention; what it computes of a token depends on its id and position."""

    attention_layers = ()

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
        self.fault = lambda hidden: hidden
        self.choice_fault = lambda logits: logits
        self.num_runs = 0

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self.num_runs += 1
        return self.fault(self.table.index_select(0, input_ids) * (positions + 1)[:, None])

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return (hidden[:, None, :] * self.table).sum(-1)

    def choose(self, hidden: torch.Tensor, num_ids: int) -> tuple[torch.Tensor, torch.Tensor]:
        values, ids = self.choice_fault(self.compute_logits(hidden)[:, :num_ids]).max(-1)
        return values, ids


class Setup:
    """Requests of one block each, and what is recorded of their steps: decodes of up to 4, unless told otherwise."""

    def __init__(self, capture: GraphCapture, sizes: tuple[int, ...] = (1, 2, 4), **options: Any) -> None:
        self.model = Rows()
        self.batch = BatchState(4, 1)
        self.preparation = InputPreparation(
            CPU, max_num_tokens=16, max_num_seqs=4, max_model_len=32, groups=[TableLayout(8)]
        )
        mixed = options.pop("mixed", GraphMode.NONE)
        self.recorded = RecordedSteps(
            self.model,
            capture,
            GraphDispatcher(decode=GraphMode.FULL, mixed=mixed, sizes=sizes, max_num_seqs=4),
            self.preparation,
            AttentionMetadataAssembly(StaticAttention, [], [], 4),
            **{"budget_bytes": 2**30, **options},
        )
        for number in range(4):
            self.batch.add(
                NewRequest(
                    request_id=f"{number}",
                    prompt_ids=[number + 3, 2 * number + 1, 7],
                    output_ids=[],
                    params=SamplingParams(seed=0),
                    eos_ids=(),
                    block_ids=[[number + 1]],
                    num_computed_tokens=2,
                )
            )

    def inputs(self, *requests: int) -> StepInputs:
        return self.preparation.prepare(self.batch, {f"{number}": 1 for number in requests})

    def check(self, inputs: StepInputs) -> None:
        """A replay gives what the model gives."""
        replayed = self.recorded.run(inputs)
        assert replayed is not None
        hidden = self.model(inputs.input_ids, inputs.positions)
        assert torch.equal(replayed.hidden, hidden)
        assert replayed.logits is not None
        assert torch.equal(replayed.logits, self.model.compute_logits(hidden)[inputs.logits_indices])


@pytest.mark.parametrize("recorder", [TorchRecorder, CheapRecorder])
def test_batches_that_grow_and_shrink_are_replayed_at_the_next_size(recorder: type[TorchRecorder]) -> None:
    setup = Setup(recorder())
    setup.recorded.record_all(60)
    for requests in ((0,), (0, 1, 2), (3,), (1, 2), (0, 1, 2, 3), (2, 3)):
        setup.check(setup.inputs(*requests))
    assert [one.num_tokens for one in setup.recorded.descriptors] in ([4, 2, 1], [1, 4, 2])


def test_what_is_dear_to_record_is_recorded_ahead_and_never_later() -> None:
    setup = Setup(TorchRecorder())
    assert setup.recorded.run(setup.inputs(0)) is None
    setup.recorded.record_all(60)
    num_runs = setup.model.num_runs
    assert setup.recorded.run(setup.inputs(0)) is not None
    assert setup.model.num_runs == num_runs == 3


def test_recording_ahead_ends_when_its_time_is_over() -> None:
    setup = Setup(TorchRecorder())
    setup.recorded.record_all(-1)
    assert not setup.recorded.descriptors
    assert "took more than" in setup.recorded.refusals[0]


def test_a_request_that_gets_no_token_has_no_logits() -> None:
    setup = Setup(CheapRecorder())
    setup.batch.tokens.extend(1, [9])  # one more of its prompt is to come
    inputs = setup.inputs(0, 1, 2)
    assert inputs.sampled.tolist() == [0, 2]
    setup.check(inputs)


def test_what_cannot_be_recorded_is_computed_and_the_log_says_why_once(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup(CheapRecorder())
    setup.model.fault = lambda hidden: hidden * float(hidden[0, 0])
    with caplog.at_level(logging.INFO, "corefw.runtime.graphs"):
        assert [setup.recorded.run(setup.inputs(0)) for _ in range(3)] == [None] * 3
    assert setup.model.num_runs == 2  # whole, then in pieces
    assert len([record for record in caplog.records if "decode steps whole" in record.message]) == 1
    assert all(" reads a tensor's values" in reason for reason in setup.recorded.refusals)
    for requests in ((0, 1), (0, 1, 2)):
        assert setup.recorded.run(setup.inputs(*requests)) is None
    assert setup.model.num_runs == 4  # the third size isn't tried
    assert len(setup.recorded.refusals) == 2


def test_a_recording_that_fails_leaves_the_step_to_be_computed() -> None:
    def fail(hidden: torch.Tensor) -> torch.Tensor:
        raise ValueError("no room")

    setup = Setup(CheapRecorder())
    setup.model.fault = fail
    assert setup.recorded.run(setup.inputs(0)) is None
    assert "ValueError: no room" in setup.recorded.refusals[0]
    setup.model.fault = lambda hidden: hidden
    setup.check(setup.inputs(0, 1))


def test_no_recording_is_made_beyond_the_memory_set_aside() -> None:
    setup = Setup(CheapRecorder(), budget_bytes=1)
    setup.check(setup.inputs(0))
    assert setup.recorded.run(setup.inputs(0, 1)) is None
    assert "memory set aside" in setup.recorded.refusals[0]


def test_ranks_replay_only_what_all_could_record() -> None:
    asked: list[bool] = []

    def agree(done: bool) -> bool:
        asked.append(done)
        return False

    setup = Setup(CheapRecorder(), agree=agree)
    assert setup.recorded.run(setup.inputs(0)) is None
    assert asked == [True, True]  # whole, then in pieces
    assert not setup.recorded.descriptors


def test_each_key_of_an_extension_has_recordings_of_its_own() -> None:
    keys: list[Hashable] = ["first", "second", "first"]
    setup = Setup(CheapRecorder(), extension=lambda inputs: keys.pop(0))
    for _ in range(3):
        setup.check(setup.inputs(0))
    assert [one.extension for one in setup.recorded.descriptors] == ["first", "second"]


def test_memory_that_a_recording_reads_must_not_be_given_up() -> None:
    setup = Setup(CheapRecorder())
    setup.check(setup.inputs(0))
    setup.model.table = setup.model.table.clone()
    with pytest.raises(AssertionError, match="given up"):
        setup.recorded.run(setup.inputs(0))


def test_nothing_is_allocated_while_a_step_is_recorded() -> None:
    setup = Setup(CheapRecorder())
    setup.model.fault = lambda hidden: hidden + torch.ones(8)
    assert setup.recorded.run(setup.inputs(0)) is None
    assert "ones allocates memory" in setup.recorded.refusals[0]


def test_collections_wait_while_a_step_is_recorded() -> None:
    import gc

    enabled: list[bool] = []
    setup = Setup(CheapRecorder())
    setup.model.fault = lambda hidden: (enabled.append(gc.isenabled()), hidden)[1]
    setup.check(setup.inputs(0))
    assert enabled == [False, True]
    assert gc.isenabled()


def test_steps_in_which_all_are_greedy_give_tokens_and_no_logits() -> None:
    setup = Setup(CheapRecorder(), num_choosable=40)
    setup.check(setup.inputs(0, 1, 2))
    for requests in ((0, 1, 2), (1, 3), (0, 1, 2)):
        inputs = setup.inputs(*requests)
        replayed = setup.recorded.run(inputs, is_greedy=True)
        assert replayed is not None
        assert replayed.logits is None
        assert replayed.chosen is not None
        logits = setup.model.compute_logits(setup.model(inputs.input_ids, inputs.positions))
        values, ids = replayed.chosen
        assert ids.tolist() == logits[:, :40].argmax(-1).tolist()
        assert torch.equal(values, logits[:, :40].amax(-1))
    assert [one.is_greedy for one in setup.recorded.descriptors] == [False, True, True]


def test_a_request_that_gets_no_token_chooses_none() -> None:
    setup = Setup(CheapRecorder(), num_choosable=50)
    setup.batch.tokens.extend(1, [9])  # one more of its prompt is to come
    inputs = setup.inputs(0, 1, 2)
    replayed = setup.recorded.run(inputs, is_greedy=True)
    assert replayed is not None
    assert replayed.chosen is not None
    logits = setup.model.compute_logits(setup.model(inputs.input_ids, inputs.positions))
    assert replayed.chosen[1].tolist() == logits.argmax(-1)[[0, 2]].tolist()


def test_where_choosing_cannot_be_recorded_logits_are_replayed() -> None:
    setup = Setup(CheapRecorder(), num_choosable=50)
    setup.model.choice_fault = lambda logits: logits * float(logits[0, 0])
    for requests in ((0,), (0, 1), (0, 1, 2)):
        replayed = setup.recorded.run(setup.inputs(*requests), is_greedy=True)
        assert replayed is not None
        assert replayed.logits is not None
        assert replayed.chosen is None
    assert [one.is_greedy for one in setup.recorded.descriptors] == [False] * 3
    assert "greedy decode steps whole aren't replayed" in setup.recorded.refusals[0]


def test_what_is_dear_to_record_is_recorded_with_logits_alone() -> None:
    setup = Setup(TorchRecorder(), num_choosable=50)
    setup.recorded.record_all(60)
    replayed = setup.recorded.run(setup.inputs(0), is_greedy=True)
    assert replayed is not None
    assert replayed.logits is not None
    assert not any(one.is_greedy for one in setup.recorded.descriptors)
