"""Appends a line for everything that happens to a request to the file named by COREFW_SAMPLE_RECORD."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from corefw.interfaces.hooks.lifecycle import CoreObserver, RequestExtension, WorkerObserver
from corefw.sdk.plugins import hookimpl

if TYPE_CHECKING:
    from corefw.interfaces.hooks.lifecycle import CoreRequest, TokenSpan, WorkerRequest, WorkerStep
    from corefw.messages.outputs import FinishReason
    from corefw.sdk.config import EngineConfig


class Story:
    """One request's context: its label, and how many lines it has."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.num_lines = 0

    def tell(self, where: str, event: str, **details: object) -> None:
        """Write a line."""
        line = {"label": self.label, "where": where, "event": event, "line": self.num_lines, **details}
        with Path(os.environ["COREFW_SAMPLE_RECORD"]).open("a", encoding="utf-8") as record:
            record.write(json.dumps(line) + "\n")
        self.num_lines += 1


def _label(extension: Mapping[str, object] | None) -> str:
    return "unnamed" if extension is None else str(extension["label"])


class CoreRecorder(CoreObserver[Story]):
    """What the core does."""

    def make_context(self, request: CoreRequest) -> Story:
        """A story under the client's label."""
        return Story(_label(request.extension))

    def added(self, request: CoreRequest, context: Story) -> None:
        context.tell("core", "added", num_prompt_tokens=len(request.prompt_ids))

    def scheduled(self, request: CoreRequest, context: Story, span: TokenSpan) -> None:
        context.tell("core", "scheduled", start=span.start, stop=span.stop)

    def sampled(self, request: CoreRequest, context: Story, token_ids: Sequence[int]) -> None:
        context.tell("core", "sampled", token_ids=list(token_ids), num_output_tokens=len(request.output_ids))

    def preempted(self, request: CoreRequest, context: Story) -> None:
        context.tell("core", "preempted", num_preemptions=request.num_preemptions)

    def resumed(self, request: CoreRequest, context: Story) -> None:
        context.tell("core", "resumed")

    def finished(self, request: CoreRequest, context: Story, reason: FinishReason, error: str | None) -> None:
        context.tell("core", "finished", reason=reason.value, error=error)

    def aborted(self, request: CoreRequest, context: Story) -> None:
        context.tell("core", "aborted")

    def closed(self, request: CoreRequest, context: Story) -> None:
        context.tell("core", "closed")


class WorkerRecorder(WorkerObserver[Story]):
    """What the worker computes."""

    def make_context(self, request: WorkerRequest) -> Story:
        """A story under the client's label."""
        story = Story(_label(request.extension))
        story.tell("worker", "came", num_output_tokens=len(request.output_ids))
        return story

    def step(self, step: WorkerStep[Story]) -> None:
        for row in step.rows:
            assert row.context is not None
            position = row.first_position
            row.context.tell("worker", "computed", start=position, stop=position + row.stop - row.start)

    def sampled(self, step: WorkerStep[Story], token_ids: Sequence[Sequence[int]]) -> None:
        for row, ids in zip(step.rows, token_ids, strict=True):
            assert row.context is not None
            assert bool(ids) == (row.logits_row is not None)
            if ids:
                row.context.tell("worker", "sampled", token_ids=list(ids))

    def gone(self, request_id: str, context: Story) -> None:
        context.tell("worker", "gone")


@hookimpl
def corefw_request_extension(config: EngineConfig) -> RequestExtension:
    """Take ``label``."""
    return RequestExtension()


@hookimpl
def corefw_core_observer(config: EngineConfig) -> CoreObserver[Story]:
    """Record what the core does."""
    return CoreRecorder()


@hookimpl
def corefw_worker_observer(config: EngineConfig) -> WorkerObserver[Story]:
    """Record what the worker computes."""
    return WorkerRecorder()
