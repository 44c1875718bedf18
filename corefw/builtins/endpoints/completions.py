"""``/v1/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from corefw.interfaces.endpoint import Endpoint
from corefw.server.event_stream import EventStream
from corefw.server.generation import Generation, off_loop
from corefw.server.json_request import json_response, read_object
from corefw.server.protocol.completions import (
    COMPLETION_REQUEST,
    Completion,
    CompletionChoice,
    CompletionChunk,
    CompletionLogprobs,
)
from corefw.server.protocol.prompts import Prompt, parse_prompts
from corefw.server.state import ServerState, state_of
from corefw.server.token_logprobs import CompletionLogprobsWriter
from corefw.server.usage import UsageTally

if TYPE_CHECKING:
    from corefw.frontend.output_processor import GenerationUpdate

__all__ = ["CompletionsEndpoint"]


class CompletionsEndpoint(Endpoint):
    """Continues prompts."""

    name = "openai_completions"
    required_tasks = frozenset({"generate"})

    def routes(self) -> Sequence[BaseRoute]:
        """One route."""
        return [Route("/v1/completions", _complete, methods=["POST"])]


async def _complete(request: Request) -> Response:
    state = state_of(request)
    fields = COMPLETION_REQUEST.decode(await read_object(request))
    params = fields.to_sampling_params(state.sampling_defaults, state.server_config, state.num_token_ids)
    generation = Generation.begin(state, fields, params, prefix="cmpl")
    prompts = parse_prompts(
        fields.prompt, max_prompts=state.server_config.max_prompts, num_token_ids=state.num_token_ids
    )
    generation.check_choices(len(prompts))
    if fields.stream:
        return EventStream(_chunks(generation, prompts), state.in_flight)
    async with state.in_flight.watch(request.receive):
        return json_response(await _whole(generation, prompts))


async def _render(state: ServerState, prompts: Sequence[Prompt]) -> list[list[int]]:
    num_chars = sum(len(prompt) for _, prompt in prompts if isinstance(prompt, str))
    return await off_loop(num_chars, _render_all, state, prompts)


def _render_all(state: ServerState, prompts: Sequence[Prompt]) -> list[list[int]]:
    render = state.renderer
    return [
        render.render_text(prompt, param=path) if isinstance(prompt, str) else render.render_ids(prompt, param=path)
        for path, prompt in prompts
    ]


async def _whole(generation: Generation, prompts: Sequence[Prompt]) -> Completion:
    rendered = await _render(generation.state, prompts)
    parts = _Parts(generation, rendered)
    choices = [CompletionChoice(index=i, text="") for i in range(len(rendered) * generation.params.n)]
    texts: list[list[str]] = [[] for _ in choices]
    async with aclosing(generation.updates(rendered, [path for path, _ in prompts])) as updates:
        async for index, update in updates:
            texts[index].append(update.text)
            _extend(choices[index], parts.choice(index, update))
    for choice, text in zip(choices, texts, strict=True):
        choice.text = "".join(text)
    return Completion(
        id=generation.id,
        created=generation.created_s,
        model=generation.model,
        choices=choices,
        usage=parts.tally.usage(),
    )


def _extend(choice: CompletionChoice, news: CompletionChoice) -> None:
    choice.finish_reason = news.finish_reason
    choice.stop_reason = news.stop_reason
    if news.logprobs is not None:
        if choice.logprobs is None:
            choice.logprobs = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for name in CompletionLogprobs.__struct_fields__:
            getattr(choice.logprobs, name).extend(getattr(news.logprobs, name))
    if news.token_ids is not UNSET:
        if choice.token_ids is UNSET:
            choice.token_ids = []
        choice.token_ids += news.token_ids
    if news.prompt_token_ids is not UNSET:
        choice.prompt_token_ids = news.prompt_token_ids


async def _chunks(generation: Generation, prompts: Sequence[Prompt]) -> AsyncGenerator[CompletionChunk, None]:
    rendered = await _render(generation.state, prompts)
    fields = generation.fields
    parts = _Parts(generation, rendered)

    def chunk(choices: list[CompletionChoice], *, with_usage: bool) -> CompletionChunk:
        no_usage = None if fields.include_usage else UNSET
        return CompletionChunk(
            id=generation.id,
            created=generation.created_s,
            model=generation.model,
            choices=choices,
            usage=parts.tally.usage() if with_usage else no_usage,
        )

    async with aclosing(generation.updates(rendered, [path for path, _ in prompts])) as updates:
        async for index, update in updates:
            choice = parts.choice(index, update)
            if update.text or update.token_ids or update.finish_reason:
                yield chunk([choice], with_usage=fields.include_usage and fields.continuous_usage)
    if fields.include_usage:
        yield chunk([], with_usage=True)


class _Parts:
    """Turns updates into choices; keeps what a choice has to remember between them."""

    def __init__(self, generation: Generation, prompts: Sequence[list[int]]) -> None:
        self.tally = UsageTally(prompts, generation.params.n)
        self._generation = generation
        self._prompts = prompts
        self._writers: dict[int, CompletionLogprobsWriter] = {}
        self._begun: set[int] = set()

    def choice(self, index: int, update: GenerationUpdate) -> CompletionChoice:
        """The news of one choice."""
        self.tally.add(index, update)
        fields = self._generation.fields
        choice = CompletionChoice(
            index=index,
            text=update.text,
            logprobs=self._logprobs(index, update),
            finish_reason=update.finish_reason,
            stop_reason=update.stop_reason,
        )
        if fields.return_token_ids:
            choice.token_ids = list(update.token_ids)
            if index not in self._begun:
                choice.prompt_token_ids = self._prompts[index // self._generation.params.n]
        self._begun.add(index)
        return choice

    def _logprobs(self, index: int, update: GenerationUpdate) -> CompletionLogprobs | None:
        if not update.logprobs:
            return None
        if index not in self._writers:
            as_ids = bool(self._generation.fields.return_tokens_as_token_ids)
            self._writers[index] = CompletionLogprobsWriter(as_ids=as_ids)
        return self._writers[index].write(update.logprobs)
