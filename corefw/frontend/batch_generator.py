"""Many prompts through an engine that its caller steps, until all have ended."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

from corefw.config.runtime_plan import RuntimePlan
from corefw.errors import EngineDeadError, EngineError, RequestError
from corefw.frontend.core_requests import complete_params, core_requests
from corefw.frontend.output_processor import GenerationUpdate, OutputProcessor
from corefw.frontend.prompt_embeds import without_first
from corefw.frontend.renderer import Renderer
from corefw.frontend.request_hooks import NO_HOOKS, RequestHooks, TextTransforms
from corefw.frontend.results import CompletionOutput, RequestOutput
from corefw.frontend.token_params import truncated, with_token_ids
from corefw.interfaces.hooks.front_end import GenerationRequest, RequestSource
from corefw.messages.outputs import EngineCoreOutput
from corefw.messages.request import EmbeddingSpan, EngineCoreRequest
from corefw.messages.sampling import SamplingParams

__all__ = ["BatchGenerator", "BatchItem", "SteppedEngine", "naming_prompt"]


class SteppedEngine(Protocol):
    """What this module needs of the engine."""

    @property
    def plan(self) -> RuntimePlan: ...
    def add_request(self, request: EngineCoreRequest) -> None: ...
    def abort(self, ids: Sequence[str]) -> None: ...
    def step(self) -> list[EngineCoreOutput]: ...
    def has_work(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItem:
    """One prompt. ``text`` is what it was made of, for the result; ``source`` is for plugins, the rest for the core."""

    prompt_ids: list[int]
    params: SamplingParams
    text: str | None = None
    priority: int = 0
    cache_salt: str | None = None
    prompt_embeds: tuple[EmbeddingSpan, ...] = ()
    extensions: Mapping[str, Any] | None = None
    source: RequestSource = field(default_factory=RequestSource)


@dataclass(frozen=True, slots=True)
class _Sequence:
    """An output that is being generated."""

    position: int
    request: EngineCoreRequest
    processor: OutputProcessor
    transforms: TextTransforms | None


class BatchGenerator:
    """Generates batch after batch. Used by one thread.

    Args:
        engine: stepped by nobody else.
        renderer: gives the tokenizer and the model's end tokens.
        hooks: of plugins.
    """

    def __init__(self, engine: SteppedEngine, renderer: Renderer, hooks: RequestHooks = NO_HOOKS) -> None:
        self._hooks = hooks
        self._engine = engine
        self._tokenizer = renderer.tokenizer
        self._eos_ids = renderer.eos_ids
        self._ids = itertools.count()

    def generate(
        self, items: Sequence[BatchItem], on_update: Callable[[int, GenerationUpdate], None] | None = None
    ) -> list[RequestOutput]:
        """Run all items together; results in their order.

        Args:
            items: checked before any of them runs.
            on_update: told (position, news) as they come.

        Raises:
            RequestError: an item is wrong; the message says which.
            EngineError: the engine failed, or ended a request with an error.
            KeyboardInterrupt: Ctrl-C, between two steps.

        Whatever is raised, nothing keeps running.
        """
        results: list[RequestOutput] = []
        running: dict[str, _Sequence] = {}
        for position, item in enumerate(items):
            with naming_prompt(position):
                running.update(self._prepare(position, item, results))
        try:
            with _interrupts_deferred() as check_interrupt:
                for sequence in running.values():
                    self._engine.add_request(sequence.request)
                while running:
                    for output in self._engine.step():
                        self._deliver(output, running, results, on_update)
                    check_interrupt()
                    if running and not self._engine.has_work():
                        raise EngineError("the engine ended a request without saying how")
        finally:
            self._abandon(list(running))
        return results

    def _prepare(self, position: int, item: BatchItem, results: list[RequestOutput]) -> dict[str, _Sequence]:
        max_model_len = self._engine.plan.max_model_len
        kept_ids = truncated(item.prompt_ids, item.params, max_model_len)
        params = complete_params(with_token_ids(item.params, self._tokenizer), len(kept_ids), max_model_len)
        requests = core_requests(
            kept_ids,
            params,
            eos_ids=self._eos_ids,
            priority=item.priority,
            cache_salt=item.cache_salt,
            extra=self._hooks.extensions.checked(item.extensions),
            prompt_embeds=without_first(item.prompt_embeds, len(item.prompt_ids) - len(kept_ids)),
        )
        asked = GenerationRequest(
            prompt_ids=kept_ids,
            params=params,
            priority=item.priority,
            cache_salt=item.cache_salt,
            source=item.source,
        )
        self._hooks.check(asked)
        outputs = [CompletionOutput(index=index) for index in range(params.n)]
        results.append(
            RequestOutput(
                request_id=str(next(self._ids)),
                prompt=item.text,
                prompt_token_ids=kept_ids,
                outputs=outputs,
            )
        )
        return {
            request.request_id: _Sequence(
                position,
                request,
                OutputProcessor(self._tokenizer, request, index),
                self._hooks.transforms(asked, index),
            )
            for index, request in enumerate(requests)
        }

    def _deliver(
        self,
        output: EngineCoreOutput,
        running: dict[str, _Sequence],
        results: list[RequestOutput],
        on_update: Callable[[int, GenerationUpdate], None] | None,
    ) -> None:
        sequence = running.get(output.request_id)
        if sequence is None:  # a stop string had ended it before the core knew
            return
        if output.finish_reason is not None:
            del running[output.request_id]
        with naming_prompt(sequence.position):
            update = sequence.processor.process(output)
            if sequence.transforms is not None:
                update = sequence.transforms.apply(update)
        results[sequence.position].add(update)
        if update.finish_reason is not None and output.finish_reason is None:
            del running[output.request_id]
            self._engine.abort([output.request_id])
        if on_update is not None:
            on_update(sequence.position, update)

    def _abandon(self, ids: list[str]) -> None:
        """End these requests, and take the news of those that have ended."""
        with contextlib.suppress(EngineDeadError):
            self._engine.abort(ids)
            while self._engine.has_work():
                self._engine.step()


@contextmanager
def naming_prompt(position: int) -> Iterator[None]:
    """Put the prompt's position in front of what a request error says."""
    try:
        yield
    except RequestError as error:
        error.message = f"prompt {position}: {error.message}"
        error.args = (error.message,)
        raise


@contextmanager
def _interrupts_deferred() -> Iterator[Callable[[], None]]:
    """Let Ctrl-C wait for the end of a step, where scheduler and model agree; a second one doesn't wait."""
    interrupted = False

    def note(_: int, __: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True

    def check() -> None:
        if interrupted:
            raise KeyboardInterrupt

    previous = signal.getsignal(signal.SIGINT)
    # Only Python's own handler is replaced: who has one of his own wants to decide himself.
    if threading.current_thread() is not threading.main_thread() or previous is not signal.default_int_handler:
        yield check
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, previous)
