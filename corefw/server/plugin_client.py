"""The engine as plugins of the server use it: everything that a core route's request passes, theirs passes too."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from corefw.errors import RequestError
from corefw.interfaces.engine_client import Prompt
from corefw.interfaces.hooks.front_end import RequestSource
from corefw.server.chat_rendering import render_chat
from corefw.server.generation import off_loop
from corefw.server.observation import ObservedRequest, RequestFacts
from corefw.server.request_id import clean_id
from corefw.server.tags import check_tags

if TYPE_CHECKING:
    from corefw.frontend.output_processor import GenerationUpdate
    from corefw.messages.outputs import SchedulerStats
    from corefw.messages.sampling import SamplingParams
    from corefw.server.state import ServerState

__all__ = ["PluginClient"]


class PluginClient:
    """See ``corefw.interfaces.engine_client.EngineClient``."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names under which the model is served."""
        return self._state.model_names

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output together."""
        return self._state.engine.plan.max_model_len

    @property
    def stats(self) -> SchedulerStats:
        """The engine's figures after its newest step."""
        return self._state.engine.stats

    def default_params(self, **values: Any) -> SamplingParams:
        """The model's own sampling defaults; ``values`` replace them."""
        return self._state.sampling_defaults.params(**values)

    async def call(self, name: str, *args: Any) -> Any:
        """Call a function that a plugin offers in the engine."""
        return await self._state.engine.call_plugin(name, *args)

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        route: str = "",
        request_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        extensions: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[GenerationUpdate, None]:
        """Updates of the outputs of one prompt as they come."""
        state, arrival_s = self._state, time.monotonic()
        params = params or self.default_params()
        source = RequestSource(
            route=route,
            request_id=clean_id(request_id or uuid.uuid4().hex),
            model=state.model_names[0],
            prompt=prompt if isinstance(prompt, str) else None,
            messages=cast("Any", prompt) if _is_chat(prompt) else None,
            tags=check_tags(tags, param="tags"),
        )
        ids = await self._render(prompt)
        figures = ObservedRequest(state, RequestFacts(source=source, arrival_s=arrival_s), params, [ids])
        updates = state.text.generate(
            ids,
            params,
            request_id=source.request_id,
            priority=priority,
            cache_salt=cache_salt,
            extra=state.text.hooks.extensions.checked(extensions),
            observer=figures.prompt(0),
            source=source,
        )
        failure: Exception | None = None
        try:
            async with aclosing(self._relayed(cast("AsyncGenerator[GenerationUpdate, None]", updates))) as relayed:
                async for update in relayed:
                    yield update
        except Exception as error:
            failure = error
            raise
        finally:
            figures.close(failure)

    async def _render(self, prompt: Prompt) -> list[int]:
        renderer = self._state.renderer
        if isinstance(prompt, str):
            return await off_loop(len(prompt), renderer.render_text, prompt, param="prompt")
        if _is_chat(prompt):
            return await render_chat(renderer, cast("Any", prompt))
        ids = renderer.render_ids(cast("Any", prompt), param="prompt")
        if max(ids) >= self._state.num_token_ids:
            raise RequestError("a token id of the prompt is out of vocabulary", param="prompt")
        return ids

    async def _relayed(self, updates: AsyncGenerator[GenerationUpdate, None]) -> AsyncGenerator[GenerationUpdate, None]:
        """Updates through a queue, into which the server puts the error that ends them early.

        Whoever asks for updates may be in any task, or in none, when the server stops: nothing can be cancelled.
        """
        news: asyncio.Queue[GenerationUpdate | Exception | None] = asyncio.Queue()
        pump = asyncio.create_task(_pump(updates, news))
        try:
            with self._state.in_flight.told(news.put_nowait):
                while (item := await news.get()) is not None:
                    if isinstance(item, Exception):
                        raise item
                    yield item
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)


async def _pump(
    updates: AsyncIterator[GenerationUpdate], news: asyncio.Queue[GenerationUpdate | Exception | None]
) -> None:
    try:
        async with aclosing(cast("AsyncGenerator[GenerationUpdate, None]", updates)) as stream:
            async for update in stream:
                news.put_nowait(update)
    except Exception as error:
        news.put_nowait(error)
    else:
        news.put_nowait(None)


def _is_chat(prompt: Prompt) -> bool:
    return not isinstance(prompt, str) and bool(prompt) and isinstance(prompt[0], Mapping)
