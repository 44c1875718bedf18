"""``/v1/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from corefw.errors import RequestError
from corefw.frontend.prompt_embeds import PromptEmbeds, check_embeds_params, without_first
from corefw.frontend.token_params import truncated
from corefw.interfaces.endpoint import Endpoint
from corefw.messages.plain import joined_news
from corefw.server.echo import Echo, echo_of_ids, echo_of_text
from corefw.server.event_stream import EventStream
from corefw.server.generation import Generation, off_loop
from corefw.server.io_data import answer_data, check_data_fields
from corefw.server.json_request import json_response, read_object
from corefw.server.openapi import GENERATION_ERRORS, Operation, fragment
from corefw.server.protocol.completions import (
    COMPLETION_REQUEST,
    Completion,
    CompletionChoice,
    CompletionChunk,
    CompletionLogprobs,
    CompletionRequest,
)
from corefw.server.protocol.prompt_embeds import AnyPrompt, EncodedEmbeds, parse_all_prompts
from corefw.server.state import state_of
from corefw.server.token_logprobs import CompletionLogprobsWriter, prompt_logprobs
from corefw.server.usage import UsageTally

if TYPE_CHECKING:
    from corefw.frontend.output_processor import GenerationUpdate
    from corefw.frontend.tokenizer.base import Tokenizer
    from corefw.messages.request import EmbeddingSpan

__all__ = ["CompletionsEndpoint"]

_ROUTE = "/v1/completions"
_EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "A text": {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0},
    "Two prompts as token ids, streamed": {"prompt": [[1, 2, 3], [4, 5]], "max_tokens": 4, "stream": True},
}


class CompletionsEndpoint(Endpoint):
    """Continues prompts."""

    name = "openai_completions"
    prefix = ""
    required_tasks = frozenset({"generate"})

    def routes(self) -> Sequence[BaseRoute]:
        """One route."""
        return [Route(_ROUTE, _complete, methods=["POST"])]

    def openapi(self) -> Mapping[str, Any]:
        """What it takes and answers."""
        return fragment(
            Operation(
                method="POST",
                path=_ROUTE,
                summary="Continue prompts",
                request=COMPLETION_REQUEST,
                answer=Completion,
                events=CompletionChunk,
                errors=GENERATION_ERRORS,
                examples=_EXAMPLES,
            )
        )


async def _complete(request: Request) -> Response:
    state = state_of(request)
    fields = COMPLETION_REQUEST.decode(await read_object(request))
    params = fields.to_sampling_params(state.sampling_defaults, state.server_config, state.num_token_ids)
    generation = Generation.begin(state, fields, params, prefix="cmpl", route=_ROUTE, headers=request.headers)
    if fields.data is not None:
        check_data_fields(generation, fields)
        with generation.places(1):  # how many prompts there are, only the processor says
            async with state.in_flight.watch(request.receive):
                return json_response(await answer_data(generation, fields))
    prompts = parse_all_prompts(
        fields.prompt,
        fields.prompt_embeds,
        max_prompts=state.server_config.max_prompts,
        num_token_ids=state.num_token_ids,
    )
    generation.check_choices(len(prompts))
    places = generation.places(len(prompts))
    if fields.stream:
        keep_alive_s = state.server_config.sse_keep_alive
        return EventStream(_chunks(generation, prompts), state.in_flight, places, keep_alive_s)
    with places:
        async with state.in_flight.watch(request.receive):
            return json_response(await _whole(generation, prompts))


@dataclass(frozen=True, slots=True)
class _Rendered:
    """A prompt's ids, how it is repeated where the client asks for that, and the embeddings in it."""

    ids: list[int]
    echo: Echo | None
    embeds: tuple[EmbeddingSpan, ...] = ()


async def _render(generation: Generation, prompts: Sequence[AnyPrompt]) -> list[_Rendered]:
    num_chars = sum(_num_chars(prompt) for _, prompt in prompts)
    return await off_loop(num_chars, _render_all, generation, prompts)


def _num_chars(prompt: str | list[int] | EncodedEmbeds) -> int:
    if isinstance(prompt, EncodedEmbeds):
        return len(prompt.text)
    return len(prompt) if isinstance(prompt, str) else 0


def _render_all(generation: Generation, prompts: Sequence[AnyPrompt]) -> list[_Rendered]:
    rendered = [_render_one(generation, path, prompt) for path, prompt in prompts]
    check_embeds_params(generation.params, [span for prompt in rendered for span in prompt.embeds])
    return rendered


def _render_one(generation: Generation, path: str, prompt: str | list[int] | EncodedEmbeds) -> _Rendered:
    if isinstance(prompt, EncodedEmbeds):
        return _render_embeds(generation, path, prompt)
    render, params = generation.state.renderer, generation.params
    if isinstance(prompt, str):
        ids = render.render_text(prompt, param=path)
    else:
        ids = render.render_ids(prompt, param=path)
    kept = truncated(ids, params, generation.state.engine.plan.max_model_len)
    if not _fields(generation).echo:
        return _Rendered(kept, None)
    if isinstance(prompt, str) and len(kept) == len(ids):
        return _Rendered(kept, echo_of_text(render.tokenizer, prompt, kept))
    return _Rendered(kept, echo_of_ids(render.tokenizer, kept, skip_special_tokens=params.skip_special_tokens))


def _render_embeds(generation: Generation, path: str, prompt: EncodedEmbeds) -> _Rendered:
    if _fields(generation).echo:
        raise RequestError("a prompt given as embeddings has no text to repeat; leave out echo", param="echo")
    state, params = generation.state, generation.params
    read = PromptEmbeds.of(state.config).decode(prompt.text, param=path)
    kept = truncated(read.ids, params, state.engine.plan.max_model_len)
    return _Rendered(kept, None, without_first(read.spans, len(read.ids) - len(kept)))


def _updates(
    generation: Generation, prompts: Sequence[AnyPrompt], rendered: Sequence[_Rendered]
) -> AsyncGenerator[tuple[int, GenerationUpdate], None]:
    return generation.updates(
        [prompt.ids for prompt in rendered],
        [path for path, _ in prompts],
        [prompt.embeds for prompt in rendered],
        [generation.source(prompt=prompt if isinstance(prompt, str) else None) for _, prompt in prompts],
    )


async def _whole(generation: Generation, prompts: Sequence[AnyPrompt]) -> Completion:
    rendered = await _render(generation, prompts)
    parts = _Parts(generation, rendered)
    choices = [CompletionChoice(index=i, text="") for i in range(len(rendered) * generation.params.n)]
    texts: list[list[str]] = [[] for _ in choices]
    async with aclosing(_updates(generation, prompts, rendered)) as updates:
        async for index, update in updates:
            news = parts.choice(index, update)
            texts[index].append(news.text)
            _extend(choices[index], news)
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
        _append(choice.logprobs, news.logprobs)
    if news.token_ids is not UNSET:
        if choice.token_ids is UNSET:
            choice.token_ids = []
        choice.token_ids += news.token_ids
    if news.extensions is not UNSET:
        choice.extensions = joined_news({} if choice.extensions is UNSET else choice.extensions, news.extensions)
    if news.prompt_token_ids is not UNSET:
        choice.prompt_token_ids = news.prompt_token_ids
    if news.prompt_logprobs is not UNSET:
        choice.prompt_logprobs = news.prompt_logprobs


async def _chunks(generation: Generation, prompts: Sequence[AnyPrompt]) -> AsyncGenerator[CompletionChunk, None]:
    rendered = await _render(generation, prompts)
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

    async with aclosing(_updates(generation, prompts, rendered)) as updates:
        async for index, update in updates:
            choice = parts.choice(index, update)
            if choice.text or update.token_ids or update.finish_reason or update.extra:
                yield chunk([choice], with_usage=fields.include_usage and fields.continuous_usage)
    if fields.include_usage:
        yield chunk([], with_usage=True)


def _fields(generation: Generation) -> CompletionRequest:
    fields = generation.fields
    assert isinstance(fields, CompletionRequest), "this route makes no others"
    return fields


class _Parts:
    """Turns updates into choices; keeps what a choice has to remember between them."""

    def __init__(self, generation: Generation, prompts: Sequence[_Rendered]) -> None:
        self.tally = UsageTally([prompt.ids for prompt in prompts], generation.params.n)
        self._generation = generation
        self._fields = _fields(generation)
        self._prompts = prompts
        self._writers: dict[int, CompletionLogprobsWriter] = {}
        self._begun: set[int] = set()

    def choice(self, index: int, update: GenerationUpdate) -> CompletionChoice:
        """The news of one choice."""
        self.tally.add(index, update)
        choice = CompletionChoice(
            index=index,
            text=update.text,
            logprobs=self._writer(index).write(update.logprobs) if update.logprobs else None,
            finish_reason=update.finish_reason,
            stop_reason=update.stop_reason,
        )
        if update.extra:
            choice.extensions = update.extra
        if self._fields.return_token_ids:
            choice.token_ids = list(update.token_ids)
        if index not in self._begun:
            self._begun.add(index)
            self._begin(choice, self._prompts[index // self._generation.params.n], update)
        return choice

    def _begin(self, choice: CompletionChoice, prompt: _Rendered, update: GenerationUpdate) -> None:
        """What the first news of a choice say of its prompt."""
        if self._fields.return_token_ids and not prompt.embeds:
            choice.prompt_token_ids = prompt.ids
        if update.prompt_logprobs is not None and self._fields.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs(update.prompt_logprobs, self._fields.prompt_logprobs)
        if prompt.echo is None:
            return
        choice.text = prompt.echo.text + choice.text
        if self._fields.logprobs is None or update.prompt_logprobs is None:
            return
        first = prompt.ids[0], self._tokenizer.token_bytes(prompt.ids[0])
        whole = self._writer(choice.index).write_prompt(first, update.prompt_logprobs, prompt.echo.offsets)
        if choice.logprobs is not None:
            _append(whole, choice.logprobs)
        choice.logprobs = whole

    @property
    def _tokenizer(self) -> Tokenizer:
        return self._generation.state.renderer.tokenizer

    def _writer(self, index: int) -> CompletionLogprobsWriter:
        if index not in self._writers:
            params = self._generation.params
            echo = self._prompts[index // params.n].echo
            self._writers[index] = CompletionLogprobsWriter(
                as_ids=bool(self._fields.return_tokens_as_token_ids),
                num_chars=len(echo.text) if echo else 0,
                is_hidden=self._tokenizer.is_special if params.skip_special_tokens else None,
                num_top=self._fields.logprobs or 0,
            )
        return self._writers[index]


def _append(logprobs: CompletionLogprobs, more: CompletionLogprobs) -> None:
    for name in CompletionLogprobs.__struct_fields__:
        getattr(logprobs, name).extend(getattr(more, name))
