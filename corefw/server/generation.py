"""Generating for one HTTP request: its prompts go to the text engine together, their news come back merged."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from corefw.errors import EngineError, RequestError
from corefw.messages.outputs import FinishReason
from corefw.messages.sampling import SamplingParams
from corefw.server.protocol.sampling import GenerationFields
from corefw.server.request_id import clean_id

if TYPE_CHECKING:
    from corefw.frontend.output_processor import GenerationUpdate
    from corefw.server.state import ServerState

__all__ = ["Generation", "merge", "off_loop"]

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

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
    """

    state: ServerState
    fields: GenerationFields
    params: SamplingParams
    model: str
    id: str
    created_s: int
    arrival_s: float

    @classmethod
    def begin(cls, state: ServerState, fields: GenerationFields, params: SamplingParams, *, prefix: str) -> Generation:
        """Name the answer.

        Raises:
            NotFoundError: the model isn't served.
        """
        return cls(
            state=state,
            fields=fields,
            params=params,
            model=state.served_name(fields.model),
            id=f"{prefix}-{clean_id(fields.request_id) if fields.request_id else uuid.uuid4().hex}",
            created_s=int(time.time()),
            arrival_s=time.monotonic(),
        )

    async def updates(self, prompts: Sequence[list[int]]) -> AsyncGenerator[tuple[int, GenerationUpdate], None]:
        """News of all choices; choice ``prompt * n + i`` is the i-th output of its prompt.

        Closing it aborts what still runs. Every choice is counted once in the metrics.

        Raises:
            RequestError: a prompt doesn't fit; nothing runs then.
            EngineError: the engine failed, or a choice did.
        """
        n = self.params.n
        self._check_sequences(len(prompts) * n)
        record = self.state.metrics.record(len(prompts) * n, self.arrival_s)
        ending = "abort"
        streams: list[AsyncGenerator[GenerationUpdate, None]] = []
        try:
            streams += [self._stream(ids) for ids in prompts]
            async for prompt, update in merge(streams):
                choice = prompt * n + update.index
                reason = update.finish_reason
                record.saw(choice, has_tokens=bool(update.token_ids), finish_reason=reason and reason.value)
                if reason in (FinishReason.ERROR, FinishReason.ABORT):
                    raise EngineError("generation was ended by the server")
                yield choice, update
        except Exception as error:
            ending = "abort" if isinstance(error, RequestError) else "error"
            raise
        finally:
            record.close(ending)
            for stream in streams:
                await stream.aclose()

    def _stream(self, prompt_ids: list[int]) -> AsyncGenerator[GenerationUpdate, None]:
        stream = self.state.text.generate(
            prompt_ids,
            self.params,
            request_id=self.id,
            priority=self.fields.priority or 0,
            cache_salt=self.fields.cache_salt,
        )
        return cast("AsyncGenerator[GenerationUpdate, None]", stream)

    def _check_sequences(self, num_sequences: int) -> None:
        limit = max(self.state.server_config.max_prompts, self.state.server_config.max_n)
        if num_sequences > limit:
            raise RequestError(f"prompts times n must be at most {limit}, got {num_sequences}", param="n")


async def merge(streams: Sequence[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T], None]:
    """Items of all streams as they come, each with its stream's position. The first failure ends it."""
    if len(streams) == 1:
        async for item in streams[0]:
            yield 0, item
        return
    queue: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(i, stream, queue)) for i, stream in enumerate(streams)]
    num_open = len(pumps)
    try:
        while num_open:
            news = await queue.get()
            if news is None:
                num_open -= 1
            elif isinstance(news, Exception):
                raise news
            else:
                yield news
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    position: int, stream: AsyncIterator[T], queue: asyncio.Queue[tuple[int, T] | Exception | None]
) -> None:
    try:
        async for item in stream:
            queue.put_nowait((position, item))
    except Exception as error:
        queue.put_nowait(error)
    else:
        queue.put_nowait(None)


async def off_loop(num_chars: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call ``function`` here, or in a thread where its input is large."""
    if num_chars <= _INLINE_CHARS:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)
