"""Generating for one HTTP request: its prompts go to the text engine together, their news come back merged."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from corefw.errors import ContextLengthError, EngineError, RequestError
from corefw.frontend.merging import merge
from corefw.interfaces.hooks.front_end import RequestSource
from corefw.messages.outputs import FinishReason
from corefw.messages.sampling import SamplingParams
from corefw.server.observation import ObservedRequest, RequestFacts
from corefw.server.protocol.generation_fields import GenerationFields
from corefw.server.request_id import clean_id
from corefw.server.tags import check_tags

if TYPE_CHECKING:
    from corefw.frontend.output_processor import GenerationUpdate
    from corefw.frontend.text_engine import Observer
    from corefw.messages.request import EmbeddingSpan, PlainDict
    from corefw.server.state import ServerState

__all__ = ["Generation", "off_loop"]

R = TypeVar("R")
P = ParamSpec("P")

# The core's own policy goes by arrival alone; what others make of a priority is theirs.
_WITHOUT_PRIORITIES = "fcfs"
# Rendering this many characters takes about 10 ms; longer texts must not hold up other requests' tokens.
_INLINE_CHARS = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """One HTTP request's work.

    Attributes:
        state: of the server.
        fields: what the client asked for.
        params: how tokens are chosen.
        model: name under which the client asked.
        id: of the answer; internal ids are always new ones, so two requests may share this.
        created_s: Unix time, whole seconds.
        arrival_s: on the monotonic clock, for latencies.
        headers: of the HTTP request; they may name the span that this request's belongs to.
        extra: data for plugins in the engine.
        route: path of the route.
    """

    state: ServerState
    fields: GenerationFields
    params: SamplingParams
    model: str
    id: str
    created_s: int
    arrival_s: float
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: PlainDict = field(default_factory=dict)
    route: str = ""

    @classmethod
    def begin(
        cls,
        state: ServerState,
        fields: GenerationFields,
        params: SamplingParams,
        *,
        prefix: str,
        route: str,
        headers: Mapping[str, str] | None = None,
    ) -> Generation:
        """Name the answer.

        Raises:
            NotFoundError: the model isn't served.
            RequestError: a priority that would be ignored, data that no plugin takes, or tokens that one hides.
        """
        if fields.return_token_ids:
            state.text.hooks.check_tokens_shown("return_token_ids")
        scheduler = state.config.scheduler
        order = scheduler.scheduling_order or scheduler.scheduling_policy
        if fields.priority and order == _WITHOUT_PRIORITIES:
            raise RequestError(
                f"priority has no effect with the scheduling policy {_WITHOUT_PRIORITIES!r} of this server; leave it "
                "out, or start the server with a --scheduling-policy that heeds it",
                param="priority",
                code="unsupported_parameter",
            )
        return cls(
            state=state,
            fields=fields,
            params=params,
            model=state.served_name(fields.model),
            extra=state.text.hooks.extensions.checked(fields.extensions),
            id=f"{prefix}-{clean_id(fields.request_id) if fields.request_id else uuid.uuid4().hex}",
            created_s=int(time.time()),
            arrival_s=time.monotonic(),
            headers=headers or {},
            route=route,
        )

    def source(
        self, *, prompt: str | None = None, messages: Sequence[Mapping[str, Any]] | None = None
    ) -> RequestSource:
        """Where the request comes from, for plugins and figures: with a prompt's text, or a chat."""
        return RequestSource(
            route=self.route,
            request_id=self.id,
            model=self.model,
            prompt=prompt,
            messages=messages,
            tags=check_tags(self.fields.metadata, param="metadata"),
        )

    def check_choices(self, num_prompts: int) -> None:
        """Call it before anything is made for each choice: prompt and n may be small where their product isn't.

        Raises:
            RequestError: too many choices.
        """
        limits = self.state.server_config
        num_choices, limit = num_prompts * self.params.n, max(limits.max_prompts, limits.max_n)
        if num_choices > limit:
            raise RequestError(f"prompts times n must be at most {limit}, got {num_choices}", param="n")

    def places(self, num_prompts: int) -> AbstractContextManager[None]:
        """A block in which the choices hold their places among all that this server works on.

        Entering it raises CapacityError where there is no room, so it comes before anything that costs time.
        """
        return self.state.admission.places(num_prompts * self.params.n)

    def updates(
        self,
        prompts: Sequence[list[int]],
        params: Sequence[str],
        embeds: Sequence[Sequence[EmbeddingSpan]] | None = None,
        sources: Sequence[RequestSource] | None = None,
    ) -> AsyncGenerator[tuple[int, GenerationUpdate], None]:
        """News of all choices; choice ``prompt * n + i`` is the i-th output of its prompt.

        Closing it aborts what still runs. Every choice is counted once in the metrics.

        Args:
            prompts: token ids.
            params: where each prompt came from, for errors.
            embeds: of each prompt; None where none has any.
            sources: of each prompt; None where nothing is known of their texts.

        Raises:
            RequestError: a prompt doesn't fit; nothing runs then.
            CapacityError: embeddings have no room now; nothing runs then.
            EngineError: the engine failed, or a choice did.
        """
        self.check_choices(len(prompts))
        updates = self._updates(prompts, params, embeds, sources)
        num_bytes = self.params.n * sum(len(span.values.data) for spans in embeds or () for span in spans)
        return self._holding(num_bytes, updates) if num_bytes else updates

    async def _holding(
        self, num_bytes: int, updates: AsyncGenerator[tuple[int, GenerationUpdate], None]
    ) -> AsyncGenerator[tuple[int, GenerationUpdate], None]:
        with self.state.embeds_memory.held(num_bytes):
            async with aclosing(updates):
                async for choice, update in updates:
                    yield choice, update

    async def _updates(
        self,
        prompts: Sequence[list[int]],
        params: Sequence[str],
        embeds: Sequence[Sequence[EmbeddingSpan]] | None,
        sources: Sequence[RequestSource] | None,
    ) -> AsyncGenerator[tuple[int, GenerationUpdate], None]:
        n = self.params.n
        source = self.source()
        facts = RequestFacts(source=source, arrival_s=self.arrival_s, headers=self.headers)
        figures = ObservedRequest(self.state, facts, self.params, prompts)
        each = zip(prompts, params, embeds or [()] * len(prompts), sources or [source] * len(prompts), strict=True)
        streams = [
            self._stream(ids, param, spans, its_source, figures.prompt(position))
            for position, (ids, param, spans, its_source) in enumerate(each)
        ]
        failure: Exception | None = None
        try:
            async with aclosing(merge(streams)) as merged:  # else its pumps would still run when streams are closed
                async for prompt, update in merged:
                    if update.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                        raise EngineError("generation was ended by the server")
                    yield prompt * n + update.index, update
        except Exception as error:
            failure = error
            raise
        finally:
            figures.close(failure)
            for stream in streams:
                await stream.aclose()

    def _stream(
        self,
        prompt_ids: list[int],
        param: str,
        embeds: Sequence[EmbeddingSpan],
        source: RequestSource,
        observer: Observer,
    ) -> AsyncGenerator[GenerationUpdate, None]:
        try:
            stream = self.state.text.generate(
                prompt_ids,
                self.params,
                request_id=self.id,
                priority=self.fields.priority or 0,
                cache_salt=self.fields.cache_salt,
                extra=self.extra,
                prompt_embeds=embeds,
                observer=observer,
                source=source,
            )
        except ContextLengthError as error:
            raise ContextLengthError(error.message, param=error.param or param) from None
        return cast("AsyncGenerator[GenerationUpdate, None]", stream)


async def off_loop(num_chars: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call ``function`` here, or in a thread where its input is large."""
    if num_chars <= _INLINE_CHARS:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)
