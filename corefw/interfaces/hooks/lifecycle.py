"""Hooks around a request's life: in the engine core, in the workers, and the data that travels with it.

A client sends a plugin data with ``extensions: {"<plugin>": {…}}``; the plugin declares that it takes any with
``corefw_request_extension``. They reach the plugin's observers in the core and in the workers as ``extension``. What a
worker's observer says with ``WorkerStep.answer`` comes back in the answer, as ``extensions`` of its choice.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from corefw.interfaces.hooks.marker import hookspec
from corefw.messages.plain import joined_news, plain_copy, plain_problem
from corefw.messages.request import PlainDict

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.messages.outputs import FinishReason
    from corefw.messages.sampling import SamplingParams

__all__ = [
    "CoreObserver",
    "CoreRequest",
    "RequestExtension",
    "StepRow",
    "TokenSpan",
    "WorkerObserver",
    "WorkerRequest",
    "WorkerStep",
    "corefw_core_observer",
    "corefw_request_extension",
    "corefw_worker_observer",
]

_C = TypeVar("_C")


class CoreRequest(Protocol):
    """A request as observers in the core see it: read-only, and up to date at each call."""

    @property
    def request_id(self) -> str:
        """Unique within the engine."""

    @property
    def prompt_ids(self) -> Sequence[int]:
        """Token ids of the prompt."""

    @property
    def output_ids(self) -> Sequence[int]:
        """Output tokens so far, those of an earlier engine included."""

    @property
    def params(self) -> SamplingParams:
        """Its parameters."""

    @property
    def priority(self) -> int:
        """Smaller is sooner."""

    @property
    def arrival_s(self) -> float:
        """``time.time()`` at the front end."""

    @property
    def num_preemptions(self) -> int:
        """How often it gave its place away."""

    @property
    def extension(self) -> PlainDict | None:
        """What the client sent this plugin; None when it sent nothing."""


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """A request's share of a step: tokens at positions ``start`` to ``stop``, without the last."""

    start: int
    stop: int


class CoreObserver(ABC, Generic[_C]):
    """Is told what the engine core does with each request. Every method may be left out.

    Called on the core's thread, between steps and in this order: ``make_context``, ``added``; then ``scheduled`` in
    each step that computes something of it, ``sampled`` when that brought tokens; ``preempted`` and later ``resumed``
    (before the ``scheduled`` of that step); ``finished`` or ``aborted``; ``closed``. What a method raises doesn't reach
    the engine; an observer that keeps raising is quarantined. It must not block.
    """

    def make_context(self, request: CoreRequest) -> _C | None:
        """What the observer wants to keep of a request; the engine hands it to every later call.

        A request whose context can't be made isn't told to this observer.
        """
        del request
        return None

    def added(self, request: CoreRequest, context: _C | None) -> None:
        """The scheduler took the request."""

    def scheduled(self, request: CoreRequest, context: _C | None, span: TokenSpan) -> None:
        """A step was put together that computes those of its tokens."""

    def sampled(self, request: CoreRequest, context: _C | None, token_ids: Sequence[int]) -> None:
        """New output tokens; they are in ``request.output_ids`` already."""

    def preempted(self, request: CoreRequest, context: _C | None) -> None:
        """It lost its blocks and waits to be computed again."""

    def resumed(self, request: CoreRequest, context: _C | None) -> None:
        """It is computed again, from the start or from what the prefix cache still has."""

    def finished(self, request: CoreRequest, context: _C | None, reason: FinishReason, error: str | None) -> None:
        """It ended by itself, or with an error."""

    def aborted(self, request: CoreRequest, context: _C | None) -> None:
        """It was ended from outside: by the client, by a stop text, or with the engine."""

    def closed(self, request: CoreRequest, context: _C | None) -> None:
        """The last call of a request, after whichever end, also that of the engine; the engine drops the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRequest:
    """A request as it comes to a worker: new, or resumed with the tokens it has so far.

    Attributes:
        request_id: unique within the engine.
        prompt_ids, output_ids: tokens so far.
        params: its parameters.
        num_computed_tokens: leading tokens that the prefix cache had.
        extension: what the client sent this plugin; None when it sent nothing.
    """

    request_id: str
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    params: SamplingParams
    num_computed_tokens: int
    extension: PlainDict | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow(Generic[_C]):
    """One request's share of a step.

    Attributes:
        request_id: whose.
        start, stop: its rows in tensors with one row a token, without the last.
        first_position: position of the first of these tokens in the sequence; the others follow.
        logits_row: its row in tensors with one row a request that gets a token; None where it gets none in this step.
        extension: what the client sent this plugin; None when it sent nothing.
        context: from ``make_context``.
    """

    request_id: str
    start: int
    stop: int
    first_position: int
    logits_row: int | None
    extension: PlainDict | None
    context: _C | None


@dataclass(slots=True, kw_only=True)
class WorkerStep(Generic[_C]):
    """A step of a worker, as one plugin sees it.

    Attributes:
        number: the step's, counted by the scheduler.
        rows: shares of the requests, in the order of their rows.
        answers: by request id, what was said with ``answer``.
    """

    number: int
    rows: tuple[StepRow[_C], ...]
    answers: dict[str, PlainDict] = field(default_factory=dict)

    def answer(self, row: StepRow[_C], news: PlainDict) -> None:
        """Send plain data back with the request's next token, under the plugin's name in ``extensions``.

        News of several steps are joined where they are told together: lists follow each other, dicts are joined key by
        key, of anything else the later stays. So say what belongs to a token as a list of one.

        Raises:
            TypeError: it isn't plain data.
        """
        if problem := plain_problem(news):
            raise TypeError(f"an answer {problem}")
        self.answers[row.request_id] = joined_news(self.answers.get(row.request_id, {}), plain_copy(news))


class WorkerObserver(ABC, Generic[_C]):
    """Is told what a worker computes. Every method may be left out. Called in each rank's worker, on its thread.

    What a method raises doesn't reach the engine; an observer that keeps raising is quarantined.
    """

    def make_context(self, request: WorkerRequest) -> _C | None:
        """What the observer wants to keep of a request while the worker holds it.

        Made again when the request comes back after a preemption. A request whose context can't be made isn't among the
        rows that this observer sees.
        """
        del request
        return None

    def step(self, step: WorkerStep[_C]) -> None:
        """A step is about to be computed."""

    def sampled(self, step: WorkerStep[_C], token_ids: Sequence[Sequence[int]]) -> None:
        """The step was computed; ``token_ids`` has the new tokens of each of its rows, often none."""

    def gone(self, request_id: str, context: _C | None) -> None:
        """The worker forgets the request: it ended, was preempted, or the worker stops."""


class RequestExtension:
    """Declares that clients may send a plugin data with a request, and checks it. Lives in the front end."""

    def check(self, data: Mapping[str, object]) -> None:
        """Refuse wrong data before the request runs. It is plain and bounded already.

        Args:
            data: what the client sent under the plugin's name, always an object.

        Raises:
            RequestError: it is wrong; the client gets a 400.
        """
        del data


@hookspec
def corefw_request_extension(config: EngineConfig) -> RequestExtension | None:
    """Say that requests may carry data for this plugin, as ``extensions: {"<plugin>": {…}}``.

    Called once in the front end, before the first request. Data for a plugin without this hook are a 400.

    Args:
        config: as resolved.

    Returns:
        what checks them; None takes none.
    """


@hookspec
def corefw_core_observer(config: EngineConfig) -> CoreObserver[object] | None:
    """Observe the life of requests in the engine core.

    Called once in the engine core, before the first request.

    Args:
        config: as resolved.

    Returns:
        the observer, or None.
    """


@hookspec
def corefw_worker_observer(config: EngineConfig) -> WorkerObserver[object] | None:
    """Observe the steps of a worker, and send data back with their tokens.

    Called once in each worker, when its model is loaded.

    Args:
        config: as resolved.

    Returns:
        the observer, or None.
    """
