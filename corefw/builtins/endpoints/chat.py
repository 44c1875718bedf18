"""``/v1/chat/completions``."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from corefw.frontend.io_processing import IORun
from corefw.frontend.prompt_embeds import without_first
from corefw.frontend.token_params import truncated
from corefw.interfaces.endpoint import Endpoint
from corefw.messages.plain import joined_news
from corefw.server.chat_rendering import render_chat
from corefw.server.event_stream import EventStream
from corefw.server.generation import Generation
from corefw.server.io_data import chat_run
from corefw.server.json_request import json_response, read_object
from corefw.server.openapi import GENERATION_ERRORS, Operation, fragment
from corefw.server.protocol.answers import PromptLogprobsBody
from corefw.server.protocol.chat import (
    CHAT_REQUEST,
    Chat,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
)
from corefw.server.protocol.chat_messages import parse_messages
from corefw.server.state import state_of
from corefw.server.token_logprobs import chat_logprobs, prompt_logprobs
from corefw.server.usage import UsageTally

if TYPE_CHECKING:
    from corefw.frontend.output_processor import GenerationUpdate
    from corefw.messages.request import EmbeddingSpan

__all__ = ["ChatEndpoint"]

_ROUTE = "/v1/chat/completions"
_QUESTION = {"role": "user", "content": "What is the capital of France?"}
_EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "A question": {"messages": [_QUESTION], "max_completion_tokens": 16, "temperature": 0},
    "The same, streamed, with usage at the end": {
        "messages": [_QUESTION],
        "max_completion_tokens": 16,
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    "An answer that is begun": {
        "messages": [_QUESTION, {"role": "assistant", "content": "The capital of"}],
        "continue_final_message": True,
        "max_completion_tokens": 16,
    },
}


class ChatEndpoint(Endpoint):
    """Answers conversations."""

    name = "openai_chat"
    prefix = ""
    required_tasks = frozenset({"generate"})

    def routes(self) -> Sequence[BaseRoute]:
        """One route."""
        return [Route(_ROUTE, _chat, methods=["POST"])]

    def openapi(self) -> Mapping[str, Any]:
        """What it takes and answers."""
        return fragment(
            Operation(
                method="POST",
                path=_ROUTE,
                summary="Answer a conversation",
                request=CHAT_REQUEST,
                answer=Chat,
                events=ChatChunk,
                errors=GENERATION_ERRORS,
                examples=_EXAMPLES,
            )
        )


async def _chat(request: Request) -> Response:
    state = state_of(request)
    fields = CHAT_REQUEST.decode(await read_object(request))
    params = fields.to_sampling_params(state.sampling_defaults, state.server_config, state.num_token_ids)
    generation = Generation.begin(state, fields, params, prefix="chatcmpl", route=_ROUTE, headers=request.headers)
    messages = parse_messages(fields.messages, state.modalities)
    places = generation.places(1)
    if fields.stream:
        keep_alive_s = state.server_config.sse_keep_alive
        return EventStream(_chunks(generation, fields, messages), state.in_flight, places, keep_alive_s)
    with places:
        async with state.in_flight.watch(request.receive):
            return json_response(await _whole(generation, fields, messages))


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A chat's ids, and the embeddings in it."""

    ids: list[int]
    embeds: tuple[EmbeddingSpan, ...] = ()


def _run(
    generation: Generation, fields: ChatRequest, messages: list[dict[str, Any]]
) -> AbstractContextManager[IORun | None]:
    return chat_run(
        generation,
        messages,
        template_kwargs=fields.chat_template_kwargs,
        add_generation_prompt=_begins_an_answer(fields),
        continue_final_message=bool(fields.continue_final_message),
    )


def _begins_an_answer(fields: ChatRequest) -> bool:
    return fields.add_generation_prompt is not False and not fields.continue_final_message


async def _render(
    generation: Generation, fields: ChatRequest, messages: list[dict[str, Any]], run: IORun | None
) -> tuple[Generation, _Prompt]:
    """The prompt; an IO processor may also say how it is continued."""
    state = generation.state
    max_model_len = state.engine.plan.max_model_len
    if run is not None:
        run.parse()
        (prompt,) = await run.prompts_async()
        generation = dataclasses.replace(generation, params=run.params)
        kept = truncated(prompt.ids, generation.params, max_model_len)
        return generation, _Prompt(kept, without_first(prompt.spans, len(prompt.ids) - len(kept)))
    ids = await render_chat(
        state.renderer,
        messages,
        template_kwargs=fields.chat_template_kwargs,
        add_generation_prompt=_begins_an_answer(fields),
        continue_final_message=bool(fields.continue_final_message),
    )
    return generation, _Prompt(truncated(ids, generation.params, max_model_len))


def _updates(
    generation: Generation, prompt: _Prompt, messages: list[dict[str, Any]]
) -> AsyncGenerator[tuple[int, GenerationUpdate], None]:
    return generation.updates(
        [prompt.ids], ["messages"], [prompt.embeds], sources=[generation.source(messages=messages)]
    )


async def _whole(generation: Generation, fields: ChatRequest, messages: list[dict[str, Any]]) -> Chat:
    with _run(generation, fields, messages) as run:
        generation, prompt = await _render(generation, fields, messages, run)
        return await _answer(generation, fields, messages, prompt)


async def _answer(generation: Generation, fields: ChatRequest, messages: list[dict[str, Any]], prompt: _Prompt) -> Chat:
    tally = UsageTally([prompt.ids], generation.params.n)
    choices = [ChatChoice(index=i, message=ChatMessage(content="")) for i in range(generation.params.n)]
    texts: list[list[str]] = [[] for _ in choices]
    told: PromptLogprobsBody | UnsetType = UNSET
    async with aclosing(_updates(generation, prompt, messages)) as updates:
        async for index, update in updates:
            tally.add(index, update)
            texts[index].append(update.text)
            _extend(choices[index], update, fields)
            if fields.prompt_logprobs is not None and index == 0 and update.prompt_logprobs is not None:
                told = prompt_logprobs(update.prompt_logprobs, fields.prompt_logprobs)
    for choice, text in zip(choices, texts, strict=True):
        choice.message.content = "".join(text)
    return Chat(
        id=generation.id,
        created=generation.created_s,
        model=generation.model,
        choices=choices,
        usage=tally.usage(),
        prompt_token_ids=prompt.ids if fields.return_token_ids and not prompt.embeds else UNSET,
        prompt_logprobs=told,
    )


def _extend(choice: ChatChoice, update: GenerationUpdate, fields: ChatRequest) -> None:
    choice.finish_reason = update.finish_reason
    choice.stop_reason = update.stop_reason
    logprobs = _logprobs(update, fields)
    if logprobs is not None:
        if choice.logprobs is None:
            choice.logprobs = ChatLogprobs(content=[])
        choice.logprobs.content += logprobs.content
    if fields.return_token_ids:
        if choice.token_ids is UNSET:
            choice.token_ids = []
        choice.token_ids += update.token_ids
    if update.extra:
        choice.extensions = joined_news({} if choice.extensions is UNSET else choice.extensions, update.extra)


async def _chunks(
    generation: Generation, fields: ChatRequest, messages: list[dict[str, Any]]
) -> AsyncGenerator[ChatChunk, None]:
    with _run(generation, fields, messages) as run:
        generation, prompt = await _render(generation, fields, messages, run)
        tally = UsageTally([prompt.ids], generation.params.n)
        begun: set[int] = set()

        def chunk(choices: list[ChatChunkChoice], *, with_usage: bool = False) -> ChatChunk:
            no_usage = None if fields.include_usage else UNSET
            with_usage = with_usage or (fields.include_usage and fields.continuous_usage)
            return ChatChunk(
                id=generation.id,
                created=generation.created_s,
                model=generation.model,
                choices=choices,
                usage=tally.usage() if with_usage else no_usage,
            )

        async with aclosing(_updates(generation, prompt, messages)) as updates:
            async for index, update in updates:
                tally.add(index, update)
                if index not in begun:
                    first = chunk([ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content=""))])
                    if fields.return_token_ids and not prompt.embeds and not begun:
                        first.prompt_token_ids = prompt.ids
                    begun.add(index)
                    yield first
                for choice in _chunk_choices(index, update, fields):
                    yield chunk([choice])
        if fields.include_usage:
            yield chunk([], with_usage=True)


def _chunk_choices(index: int, update: GenerationUpdate, fields: ChatRequest) -> list[ChatChunkChoice]:
    """The text that is new, then the end, each a choice of its own."""
    choices: list[ChatChunkChoice] = []
    logprobs = _logprobs(update, fields)
    shows_ids = update.token_ids and fields.return_token_ids
    if update.text or logprobs is not None or shows_ids or update.extra:
        choices.append(
            ChatChunkChoice(
                index=index,
                delta=ChatDelta(content=update.text),
                logprobs=logprobs,
                token_ids=list(update.token_ids) if fields.return_token_ids else UNSET,
                extensions=update.extra or UNSET,
            )
        )
    if update.finish_reason is not None:
        choices.append(
            ChatChunkChoice(
                index=index,
                delta=ChatDelta(),
                finish_reason=update.finish_reason,
                stop_reason=update.stop_reason,
            )
        )
    return choices


def _logprobs(update: GenerationUpdate, fields: ChatRequest) -> ChatLogprobs | None:
    if not update.logprobs:
        return None
    return chat_logprobs(update.logprobs, as_ids=bool(fields.return_tokens_as_token_ids))
