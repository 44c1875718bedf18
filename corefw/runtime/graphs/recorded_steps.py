"""The recordings of a worker: made when they are needed or at start, replayed instead of running the model."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch

from corefw.collections_paused import collections_paused
from corefw.errors import CorefwError
from corefw.interfaces.graphs import CaptureRefused
from corefw.models.layers.forward_context import ForwardContext, set_forward_context
from corefw.observability.logging import get_logger
from corefw.runtime.graphs.descriptor import BatchDescriptor, GraphMode
from corefw.runtime.graphs.pieces import Boundary, Pieces
from corefw.runtime.model_runner.execution import Forward

if TYPE_CHECKING:
    from corefw.interfaces.graphs import GraphCapture, Recording
    from corefw.runtime.graphs.dispatcher import GraphDispatcher
    from corefw.runtime.model_runner.attention_metadata import AttentionMetadataAssembly
    from corefw.runtime.model_runner.execution import ChoosingModel, Chosen, RunnableModel
    from corefw.runtime.model_runner.input_preparation import InputPreparation, StepInputs

__all__ = ["RecordedSteps", "ReplayedForward"]

_log = get_logger(__name__)

# A kind of step that couldn't be recorded in so many sizes isn't tried in others: they have the same in their way.
_MAX_REFUSALS = 2

Agreement = Callable[[bool], bool]
ExtensionKey = Callable[["StepInputs"], Hashable]


class ReplayedForward(Forward):
    """A forward pass that was replayed."""

    def __init__(
        self,
        model: RunnableModel,
        context: ForwardContext,
        inputs: StepInputs,
        outputs: Sequence[torch.Tensor],
    ) -> None:
        super().__init__(model, context)
        num_tokens = inputs.num_tokens
        self.hidden = outputs[0] if len(outputs[0]) == num_tokens else outputs[0][:num_tokens]
        num_sampled = len(inputs.sampled)
        if not num_sampled:
            return
        if len(outputs) == 1:
            self.logits = self.compute_logits(self.hidden[inputs.logits_indices])
            return
        told = outputs[1:]
        if len(outputs[0]) != num_sampled:
            which = slice(num_sampled) if num_sampled == num_tokens else inputs.logits_indices
            told = tuple(output[which] for output in told)
        if len(told) == 1:
            self.logits = told[0]
        else:
            self.chosen = told[0], told[1]


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A recording, and what is computed between its pieces."""

    recording: Recording
    boundaries: Sequence[Boundary]


class RecordedSteps:
    """Replays what it can. Whatever can't be recorded is computed as ever, and the log says why, once a reason.

    Args:
        model: what is recorded.
        capture: records it.
        dispatcher: knows which batches have recordings.
        preparation: owns the tensors that recordings read.
        assembly: makes what attention reads.
        budget_bytes: memory that recordings may take.
        agree: whether all ranks could do what this one could; they do the same.
        extension: what else the recording depends on.
        num_choosable: of so many ids the model can choose the most likely one; None where it can't.
    """

    def __init__(
        self,
        model: RunnableModel,
        capture: GraphCapture,
        dispatcher: GraphDispatcher,
        preparation: InputPreparation,
        assembly: AttentionMetadataAssembly,
        *,
        budget_bytes: int,
        agree: Agreement = bool,
        extension: ExtensionKey | None = None,
        num_choosable: int | None = None,
    ) -> None:
        self._model = model
        # A second recording of each size costs little only where one does.
        self._num_choosable = num_choosable if capture.is_cheap else None
        self._capture = capture
        self._dispatcher = dispatcher
        self._preparation = preparation
        self._assembly = assembly
        self._left_bytes = budget_bytes
        self._agree = agree
        self._extension = extension
        self._pieces = Pieces()
        self._recorded: dict[BatchDescriptor, _Recorded | None] = {}
        self._told: dict[str, None] = {}
        self._num_refused: Counter[BatchDescriptor] = Counter()
        self.num_replays = 0
        self.last_replayed: Recording | None = None  # of steps that are replayed whole

    @property
    def descriptors(self) -> list[BatchDescriptor]:
        """What has been recorded."""
        return [descriptor for descriptor, recorded in self._recorded.items() if recorded is not None]

    @property
    def refusals(self) -> list[str]:
        """Why other steps aren't, a sentence each."""
        return list(self._told)

    def run(self, inputs: StepInputs, *, is_greedy: bool = False) -> ReplayedForward | None:
        """Replay a step; None: it must be computed. Where ``is_greedy``, the most likely tokens are all that is wanted.

        Then the step may be replayed with logits all the same.
        """
        key = None if self._extension is None else self._extension(inputs)
        is_greedy = is_greedy and self._num_choosable is not None
        descriptor = self._dispatcher.choose(inputs.num_tokens, len(inputs.rows), key, is_greedy=is_greedy)
        while descriptor is not None:
            if descriptor not in self._recorded and (self._capture.is_cheap or key is not None):  # no key is foreseen
                self._record(descriptor, self._padded(inputs, descriptor))
            recorded = self._recorded.get(descriptor)
            if recorded is not None:
                return self._replay(recorded, descriptor, inputs)
            descriptor = _smaller(descriptor)
        return None

    def record_all(self, limit_s: float) -> None:
        """Record every kind of step ahead, in a while at most; then what is left is computed as ever.

        Nothing is done where recordings are made when they are first needed.
        """
        if self._capture.is_cheap:
            return
        end = time.monotonic() + limit_s
        for descriptor in self._dispatcher.all():
            if not self._agree(time.monotonic() < end):
                self._tell(f"recording steps took more than {limit_s:g} s, so smaller ones aren't recorded")
                return
            wanted: BatchDescriptor | None = descriptor
            while wanted is not None and wanted not in self._recorded:
                self._record(wanted, self._preparation.blank(wanted.num_tokens, wanted.num_requests))
                wanted = None if self._recorded[wanted] is not None else _smaller(wanted)

    def _padded(self, inputs: StepInputs, descriptor: BatchDescriptor) -> StepInputs:
        num_requests = descriptor.num_requests or len(inputs.rows)
        return self._preparation.padded(inputs, descriptor.num_tokens, num_requests)

    def _replay(self, recorded: _Recorded, descriptor: BatchDescriptor, inputs: StepInputs) -> ReplayedForward:
        self.num_replays += 1
        recording = recorded.recording
        with torch.inference_mode():
            if descriptor.mode is GraphMode.FULL:
                context = self._assembly.assemble(self._padded(inputs, descriptor))
                recording.replay()
                self.last_replayed = recording
            else:
                context = self._assembly.assemble(inputs)
                with set_forward_context(context):
                    for piece, boundary in enumerate(recorded.boundaries):
                        recording.replay(piece)
                        boundary.compute(inputs.num_tokens)
                recording.replay(len(recorded.boundaries))
            return ReplayedForward(self._model, context, inputs, recording.outputs)

    def _record(self, descriptor: BatchDescriptor, padded: StepInputs) -> None:
        """Make a recording, or note that it can't be made."""
        recorded, reason = None, "another rank can't record it"
        kind = replace(descriptor, num_tokens=0, num_requests=0)
        if self._is_hopeless(kind):
            self._recorded[descriptor] = None
            return
        if self._left_bytes <= 0:
            reason = "the memory set aside for recordings is used up"
        else:
            try:
                recorded = self._recording(descriptor, padded)
            except CaptureRefused as error:
                reason = str(error)
            except CorefwError:
                raise
            except Exception as error:  # the border to whoever supplies the capture
                reason = f"recording failed: {type(error).__name__}: {error}"
        if not self._agree(recorded is not None):
            recorded = None
        self._recorded[descriptor] = recorded
        if recorded is None:
            self._num_refused[kind] += 1
            self._tell(f"{descriptor.kind} aren't replayed: {reason}", quietly=descriptor.is_greedy)
            return
        self._left_bytes -= recorded.recording.num_bytes
        _log.debug("recorded a %s: %d bytes", descriptor, recorded.recording.num_bytes)

    def _is_hopeless(self, kind: BatchDescriptor) -> bool:
        """Whether the likes of it have been refused often enough; what logits stumble over, tokens do, too."""
        kinds = {kind, replace(kind, is_greedy=False)}
        return any(self._num_refused[one] >= _MAX_REFUSALS for one in kinds)

    def _recording(self, descriptor: BatchDescriptor, padded: StepInputs) -> _Recorded:
        capture, boundaries = self._capture, list[Boundary]()
        if descriptor.mode is GraphMode.FULL:
            context = self._assembly.assemble(padded, for_capture=True)
        else:
            context = ForwardContext({}, {}, self._pieces.splitter(capture, boundaries))
        # Finalizers of old tensors must not run in the middle of a recording.
        with collections_paused(), torch.inference_mode(), set_forward_context(context):
            capture.begin()
            try:
                hidden_TE = self._model(padded.input_ids, padded.positions)
                outputs = [hidden_TE]
                if descriptor.is_greedy:
                    outputs += self._choose(hidden_TE)
                elif descriptor.is_decode:
                    outputs.append(self._model.compute_logits(hidden_TE))
                return _Recorded(capture.end(outputs), boundaries)
            finally:
                capture.cancel()

    def _choose(self, hidden_RE: torch.Tensor) -> Chosen:
        assert self._num_choosable is not None, "else no such descriptor is asked for"
        return cast("ChoosingModel", self._model).choose(hidden_RE, self._num_choosable)

    def _tell(self, reason: str, *, quietly: bool = False) -> None:
        """What can't be recorded with tokens is recorded with logits, or is told of then."""
        if reason not in self._told:
            self._told[reason] = None
            _log.log(logging.DEBUG if quietly else logging.INFO, "%s", reason)


def _smaller(descriptor: BatchDescriptor) -> BatchDescriptor | None:
    """What to try where a step can't be recorded so."""
    if descriptor.is_greedy:
        return replace(descriptor, is_greedy=False)
    if descriptor.mode is not GraphMode.FULL:
        return None
    return replace(descriptor, mode=GraphMode.PIECEWISE, num_requests=0)
