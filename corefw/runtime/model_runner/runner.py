"""The model runner: a step from the scheduler's words to sampled tokens. Only puts its parts together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from corefw.errors import EngineError
from corefw.messages.outputs import ModelRunnerOutput
from corefw.messages.scheduling import SchedulerOutput
from corefw.runtime.graphs.recorded_steps import RecordedSteps
from corefw.runtime.kv_pages import KVPages
from corefw.runtime.kv_transfer.steps import KVTransferSteps
from corefw.runtime.model_runner.attention_metadata import AttentionMetadataAssembly
from corefw.runtime.model_runner.batch_state import BatchState
from corefw.runtime.model_runner.execution import Execution, Forward
from corefw.runtime.model_runner.input_preparation import InputPreparation, StepInputs
from corefw.runtime.model_runner.prompt_embeds import HeldEmbeds, PlacedEmbeds
from corefw.runtime.model_runner.prompt_logprobs import PromptLogprobsCollector
from corefw.runtime.model_runner.sampling_output import SamplingOutput
from corefw.runtime.model_runner.stage_link import StageLink
from corefw.runtime.model_runner.step_observers import StepObservers

__all__ = ["ModelRunner"]


@dataclass(frozen=True, slots=True)
class _ExecutedStep:
    """Carried from ``execute_model`` to ``sample_tokens``. Without inputs: nothing was to be computed."""

    inputs: StepInputs | None
    forward: Forward | None


class ModelRunner:
    """Runs steps in pairs of calls. A step that raised leaves the batch as the diff made it; the scheduler ends its
    requests, and the next diff removes them.

    Attributes:
        batch: the requests held.
        observers: plugins that watch steps; None where there are none.
        transfers: the KV connector's calls; None without one.
        link: to the neighbours of a pipeline stage; None where this process holds all layers.
        recorded: steps that are replayed; None where nothing is recorded.
    """

    def __init__(
        self,
        *,
        batch: BatchState,
        pages: KVPages,
        preparation: InputPreparation,
        assembly: AttentionMetadataAssembly,
        execution: Execution,
        sampling: SamplingOutput,
        prompt_logprobs: PromptLogprobsCollector,
        embeds: HeldEmbeds,
    ) -> None:
        self.batch = batch
        self.observers: StepObservers | None = None
        self.transfers: KVTransferSteps | None = None
        self.link: StageLink | None = None
        self.recorded: RecordedSteps | None = None
        self._pages = pages
        self._preparation = preparation
        self._assembly = assembly
        self._execution = execution
        self._sampling = sampling
        self._prompt_logprobs = prompt_logprobs
        self._embeds = embeds
        self._executed: _ExecutedStep | None = None

    def execute_model(self, scheduled: SchedulerOutput) -> None:
        """Update the batch, prepare the inputs, run the model."""
        self._executed = None
        link = self.link if scheduled.total_num_scheduled_tokens else None
        with nullcontext() if link is None else link.step():
            self._execute(scheduled, link)

    def _execute(self, scheduled: SchedulerOutput, link: StageLink | None) -> None:
        if self.transfers is not None:
            self.transfers.settle()
        self._pages.clear(scheduled.block_ids_to_zero)
        if self.transfers is not None:  # before all that may fail: whoever waits for a load would wait for ever
            self.transfers.begin(scheduled.kv_transfer)
        self.batch.update(scheduled)
        self._sampling.update(scheduled)
        self._prompt_logprobs.update(scheduled)
        self._embeds.update(scheduled)
        if self.observers is not None:
            self.observers.update(scheduled)
        if not scheduled.total_num_scheduled_tokens:
            self._executed = _ExecutedStep(None, None)
            return
        inputs = self._preparation.prepare(self.batch, scheduled.num_scheduled_tokens)
        embeds = self._embeds.of_step(self.batch, inputs)
        observers = self.observers
        with nullcontext() if observers is None else observers.step(scheduled.step, self.batch, inputs):
            is_greedy = self._execution.num_choosable is not None and self._sampling.is_greedy(self.batch, inputs)
            forward = self._replayed(inputs, embeds, is_greedy) or self._computed(inputs, embeds, link, is_greedy)
        if link is not None:
            link.give(forward.given)
        self._executed = _ExecutedStep(inputs, forward)

    def _replayed(self, inputs: StepInputs, embeds: Sequence[PlacedEmbeds], is_greedy: bool) -> Forward | None:
        """Recordings have neither embeddings nor what the KV connector does in the layers of some steps."""
        if self.recorded is None or embeds or (self.transfers is not None and self.transfers.is_under_way):
            return None
        return self.recorded.run(inputs, is_greedy=is_greedy)

    def _computed(
        self, inputs: StepInputs, embeds: Sequence[PlacedEmbeds], link: StageLink | None, is_greedy: bool
    ) -> Forward:
        context = self._assembly.assemble(inputs)
        received = None if link is None else link.receive()
        return self._execution.run(inputs, context, embeds, received, is_greedy=is_greedy)

    def sample_tokens(self) -> ModelRunnerOutput:
        """Finish the step executed last."""
        executed, self._executed = self._executed, None
        if executed is None:
            raise EngineError("sample_tokens was called without a step that has been executed")
        inputs, forward = executed.inputs, executed.forward
        if inputs is None or forward is None or forward.given is not None:
            return self._with_transfers(ModelRunnerOutput(request_ids=[], sampled_token_ids=[]))
        told = self._prompt_logprobs.collect(self.batch, inputs, forward.hidden, forward.compute_logits)
        output = self._sampling.finish(self.batch, inputs, forward.logits, told, forward.chosen)
        if self.observers is not None:
            output = self.observers.finish(output)
        return self._with_transfers(output)

    def _with_transfers(self, output: ModelRunnerOutput) -> ModelRunnerOutput:
        return output if self.transfers is None else self.transfers.finish(output)
