"""What plugins observe of a worker's steps, and change in its model; what they say goes back with the next token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from corefw.interfaces.hooks.lifecycle import StepRow, WorkerObserver, WorkerRequest, WorkerStep, corefw_worker_observer
from corefw.messages.outputs import ModelRunnerOutput
from corefw.messages.plain import joined_news
from corefw.plugin_system.observers import ObserverCalls

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.interfaces.hooks.model import ModelTaps
    from corefw.messages.request import PlainDict
    from corefw.messages.scheduling import NewRequest, SchedulerOutput
    from corefw.plugin_system.manager import PluginManager
    from corefw.runtime.model_runner.batch_state import BatchState
    from corefw.runtime.model_runner.input_preparation import StepInputs

__all__ = ["StepObservers", "Watcher", "worker_observers"]

Tensors = tuple[torch.Tensor, ...]


def worker_observers(config: EngineConfig, plugins: PluginManager) -> list[Watcher]:
    """Those of the plugins that were loaded, in order."""
    found = plugins.collect(WorkerObserver, corefw_worker_observer, config)
    return [Watcher(ObserverCalls(one, WorkerObserver, plugins.guard)) for one in found]


class Watcher:
    """One plugin's observer, and what it keeps of the requests that the worker holds."""

    def __init__(self, observer: ObserverCalls[Any]) -> None:
        self.plugin = observer.plugin
        self.observer = observer
        self.current: WorkerStep[Any] | None = None
        self._held: dict[str, tuple[Any, PlainDict | None]] = {}

    def enter(self, request: NewRequest) -> None:
        """Make a request's context; one whose context can't be made isn't shown."""
        self.leave(request.request_id)
        extension = request.extra.get(self.plugin)
        seen = WorkerRequest(
            request_id=request.request_id,
            prompt_ids=tuple(request.prompt_ids),
            output_ids=tuple(request.output_ids),
            params=request.params,
            num_computed_tokens=request.num_computed_tokens,
            extension=extension,
        )
        made = self._made_context(seen)
        if made is not None:
            self._held[request.request_id] = made[0], extension

    def leave(self, request_id: str) -> None:
        """Forget a request; one that isn't known was never shown."""
        if request_id in self._held:
            context, _ = self._held.pop(request_id)
            self.observer.run("gone", request_id, context)

    def leave_all(self) -> None:
        """The worker stops."""
        for request_id in tuple(self._held):
            self.leave(request_id)

    def begin(self, number: int, rows: Sequence[_Row]) -> None:
        """Announce a step."""
        self.current = WorkerStep(number=number, rows=tuple(self._rows(rows)))
        self.observer.run("step", self.current)

    def show(self, point: str, *tensors: torch.Tensor) -> Tensors | None:
        """A tap's observer: what replaces the tensors of a point, if anything does."""
        step, taps = self.current, self.observer.value
        if step is None:  # warm-up, or a prompt that is scored
            return None
        return self.observer.run_as("show", lambda: _shown(taps, step, point, tensors))

    def finish(self, step: WorkerStep[Any], sampled: dict[str, list[int]]) -> None:
        """Tell what was sampled."""
        token_ids = [tuple(sampled.get(row.request_id, ())) for row in step.rows]
        self.observer.run("sampled", step, token_ids)

    def _made_context(self, request: WorkerRequest) -> tuple[Any] | None:
        """In a tuple, since an observer may want to keep nothing; None where it failed."""
        if not self.observer.has("make_context"):
            return (None,)
        return self.observer.run_as("make_context", lambda: (self.observer.value.make_context(request),))

    def _rows(self, rows: Sequence[_Row]) -> Iterator[StepRow[Any]]:
        for row in rows:
            if row.request_id in self._held:
                context, extension = self._held[row.request_id]
                yield StepRow(
                    request_id=row.request_id,
                    start=row.start,
                    stop=row.stop,
                    first_position=row.first_position,
                    logits_row=row.logits_row,
                    extension=extension,
                    context=context,
                )


class _Row(msgspec.Struct, frozen=True, gc=False):
    """A request's share of a step, as every plugin sees it."""

    request_id: str
    start: int
    stop: int
    first_position: int
    logits_row: int | None


class StepObservers:
    """All plugins of a worker that observe. A worker without any has none of these objects.

    Args:
        watchers: in the order in which they are told; at least one.
    """

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = tuple(watchers)
        self._steps: list[tuple[Watcher, WorkerStep[Any]]] = []
        self._unsent: dict[str, PlainDict] = {}

    def update(self, scheduled: SchedulerOutput) -> None:
        """Forget who left, and let observers make contexts for who came."""
        for request_id in (*scheduled.finished_request_ids, *scheduled.preempted_request_ids):
            self._unsent.pop(request_id, None)
            for watcher in self._watchers:
                watcher.leave(request_id)
        for request in scheduled.new_requests:
            for watcher in self._watchers:
                watcher.enter(request)

    @contextmanager
    def step(self, number: int, batch: BatchState, inputs: StepInputs) -> Iterator[None]:
        """The block in which a step's forward pass runs: taps show tensors in there, and nowhere else."""
        rows = _rows(batch, inputs)
        for watcher in self._watchers:
            watcher.begin(number, rows)
        self._steps = [(watcher, watcher.current) for watcher in self._watchers if watcher.current is not None]
        try:
            yield
        finally:
            for watcher in self._watchers:
                watcher.current = None

    def finish(self, output: ModelRunnerOutput) -> ModelRunnerOutput:
        """Tell what was sampled, and take along what observers had to say to requests that got a token."""
        sampled = {name: ids for name, ids in zip(output.request_ids, output.sampled_token_ids, strict=True) if ids}
        steps, self._steps = self._steps, []
        for watcher, step in steps:
            watcher.finish(step, sampled)
            for request_id, news in step.answers.items():
                before = self._unsent.get(request_id, {})
                self._unsent[request_id] = joined_news(before, {watcher.plugin: news})
        told = {request_id: self._unsent.pop(request_id) for request_id in sampled if request_id in self._unsent}
        return msgspec.structs.replace(output, extra={**output.extra, **told}) if told else output

    def close(self) -> None:
        """The worker stops."""
        for watcher in self._watchers:
            watcher.leave_all()


def _rows(batch: BatchState, inputs: StepInputs) -> list[_Row]:
    starts = inputs.query_starts.tolist()
    positions = batch.num_computed[inputs.rows].tolist()
    logits_rows = {index: place for place, index in enumerate(inputs.sampled.tolist())}
    return [
        _Row(batch.request_ids[row], starts[index], starts[index + 1], positions[index], logits_rows.get(index))
        for index, row in enumerate(inputs.rows.tolist())
    ]


def _shown(taps: ModelTaps[Any], step: WorkerStep[Any], point: str, tensors: Tensors) -> Tensors | None:
    """What the plugin puts in place of the tensors, checked: a wrong shape would take everybody's step down."""
    replaced = taps.show(step, point, *tensors)
    if replaced is None:
        return None
    given = replaced if isinstance(replaced, tuple) else (replaced,)
    if [_kind(tensor) for tensor in given] != [_kind(tensor) for tensor in tensors]:
        raise TypeError(f"{point} takes tensors like those that it shows: {[_kind(tensor) for tensor in tensors]}")
    return given


def _kind(tensor: object) -> tuple[object, ...]:
    if not isinstance(tensor, torch.Tensor):
        return (type(tensor).__name__,)
    return tuple(tensor.shape), str(tensor.dtype), str(tensor.device)
