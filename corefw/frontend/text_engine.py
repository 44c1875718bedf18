"""From prompt ids to text: splits n outputs, sends them to the core, brings them back as updates."""

from __future__ import annotations

import copy
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Protocol, Self

from corefw.config.runtime_plan import RuntimePlan
from corefw.errors import EngineError
from corefw.frontend.core_requests import complete_params, core_requests
from corefw.frontend.merging import merge
from corefw.frontend.output_processor import GenerationUpdate, OutputProcessor
from corefw.frontend.prompt_embeds import without_first
from corefw.frontend.renderer import Renderer
from corefw.frontend.request_hooks import NO_HOOKS, RequestHooks
from corefw.frontend.token_params import truncated, with_token_ids
from corefw.frontend.update_pacing import UpdatePacing
from corefw.interfaces.hooks.front_end import GenerationRequest, RequestSource
from corefw.messages.outputs import EngineCoreOutput, RequestTimes
from corefw.messages.request import EmbeddingSpan, EngineCoreRequest, PlainDict
from corefw.messages.sampling import SamplingParams

__all__ = ["CoreEngine", "CoreStream", "Observer", "TextEngine"]

_log = logging.getLogger(__name__)


class CoreStream(Protocol):
    """One core request's outputs; the last has a finish reason."""

    def __aiter__(self) -> AsyncIterator[EngineCoreOutput]: ...
    def abort(self) -> None: ...


class CoreEngine(Protocol):
    """What this room needs of the engine."""

    @property
    def plan(self) -> RuntimePlan: ...
    def submit(self, request: EngineCoreRequest) -> CoreStream: ...


class Observer(Protocol):
    """Told of a request's progress, for figures."""

    def saw(self, index: int, update: GenerationUpdate, times: RequestTimes | None) -> None:
        """An output of the request has news, at the moment they came: before updates are joined or held back."""


class Admission(Protocol):
    """Says whether so many sequences may run now."""

    def generating(self, num_sequences: int) -> AbstractContextManager[None]:
        """The block in which they run; entering it raises where there is no room."""


class TextEngine:
    """Generates text. Used by one event loop.

    Args:
        engine: the engine's client.
        renderer: gives the tokenizer and the model's end tokens.
        stream_interval: tokens between two updates of an output.
        hooks: of plugins.

    Attributes:
        hooks: as given.
    """

    _admission: Admission | None = None

    def __init__(
        self, engine: CoreEngine, renderer: Renderer, stream_interval: int = 1, hooks: RequestHooks = NO_HOOKS
    ) -> None:
        self.hooks = hooks
        self._engine = engine
        self._stream_interval = stream_interval
        self._tokenizer = renderer.tokenizer
        self._eos_ids = renderer.eos_ids

    def limited_by(self, admission: Admission) -> Self:
        """The same, but that every request is admitted before it runs."""
        limited = copy.copy(self)
        limited._admission = admission
        return limited

    def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        extra: PlainDict | None = None,
        observer: Observer | None = None,
        prompt_embeds: Sequence[EmbeddingSpan] = (),
        source: RequestSource | None = None,
    ) -> AsyncIterator[GenerationUpdate]:
        """Check a request at once, then return the iterator of its updates; nothing runs before the first is asked for.

        Closing the iterator, or cancelling who waits for it, aborts what still runs.

        Args:
            prompt_ids: at least one id of the vocabulary.
            params: without a seed each request gets a random one; without ``max_tokens`` output may fill the context;
                ``output_kind`` says whether updates carry what is new (the default), all so far, or come at the end.
            request_id: the client's name for it, for the log alone: ids inside the engine are always new.
            priority, cache_salt, extra, prompt_embeds: for the core, see ``EngineCoreRequest``.
            observer: told of all news, before plugins change their text.
            source: where the request comes from, for plugins.

        Raises:
            RequestError: empty prompt, parameters name ids that aren't in the vocabulary, or a plugin refuses it.
            ContextLengthError: prompt, or prompt and ``max_tokens``, exceed the context.
            CapacityError, EngineError: a plugin says so, or failed.

        The iterator raises EngineDeadError when the engine has gone, and what ``error_of_output`` says when the core
        ends an output with an error; the request's other outputs are aborted then. Behind ``limited_by`` its first step
        may raise CapacityError.
        """
        max_model_len = self._engine.plan.max_model_len
        kept_ids = truncated(prompt_ids, params, max_model_len)
        params = complete_params(with_token_ids(params, self._tokenizer), len(kept_ids), max_model_len)
        requests = core_requests(
            kept_ids,
            params,
            eos_ids=self._eos_ids,
            priority=priority,
            cache_salt=cache_salt,
            extra=extra,
            prompt_embeds=without_first(prompt_embeds, len(prompt_ids) - len(kept_ids)),
        )
        asked = GenerationRequest(
            prompt_ids=kept_ids,
            params=params,
            priority=priority,
            cache_salt=cache_salt,
            extra=extra or {},
            source=source or RequestSource(request_id=request_id),
        )
        self.hooks.check(asked)
        _log.debug("request %s runs as %s", request_id, requests[0].request_id)
        if len(requests) == 1 and self._admission is None:
            return self._run_one(asked, requests[0], observer, 0)
        run = self._run_alone if len(requests) == 1 else self._run_many
        return run(asked, requests, observer)

    def _admitted(self, num_sequences: int) -> AbstractContextManager[None]:
        return nullcontext() if self._admission is None else self._admission.generating(num_sequences)

    async def _run_alone(
        self, asked: GenerationRequest, requests: list[EngineCoreRequest], observer: Observer | None
    ) -> AsyncGenerator[GenerationUpdate, None]:
        with self._admitted(1):
            async with aclosing(self._run_one(asked, requests[0], observer, 0)) as updates:
                async for update in updates:
                    yield update

    async def _run_one(
        self, asked: GenerationRequest, request: EngineCoreRequest, observer: Observer | None, index: int
    ) -> AsyncGenerator[GenerationUpdate, None]:
        processor = OutputProcessor(self._tokenizer, request, index)
        transforms = self.hooks.transforms(asked, index)
        pacing = UpdatePacing(request.params.output_kind, self._stream_interval)
        stream = self._engine.submit(request)
        try:
            async for output in stream:
                update = processor.process(output)
                if observer is not None:
                    observer.saw(index, update, output.times)
                if update.finish_reason is not None:
                    stream.abort()  # without effect when the core ended it
                due = pacing.take(update if transforms is None else transforms.apply(update))
                if due is not None:
                    yield due
                if update.finish_reason is not None:
                    return
            raise EngineError("the engine ended a request without saying how")
        finally:
            stream.abort()

    async def _run_many(
        self, asked: GenerationRequest, requests: list[EngineCoreRequest], observer: Observer | None
    ) -> AsyncGenerator[GenerationUpdate, None]:
        """Updates of all outputs in the order in which they come."""
        with self._admitted(len(requests)):
            streams = [self._run_one(asked, request, observer, i) for i, request in enumerate(requests)]
            async with aclosing(merge(streams)) as merged:
                async for _, update in merged:
                    yield update
