"""Requests that an IO processor takes: ``data`` in place of prompts, and chats with parts that aren't text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import TYPE_CHECKING, Any

from corefw.errors import RequestError
from corefw.frontend.chat_messages import has_media
from corefw.frontend.io_processing import IORun, ProcessedPrompt, as_io_outputs
from corefw.frontend.prompt_embeds import without_first
from corefw.frontend.results import CompletionOutput
from corefw.frontend.token_params import truncated
from corefw.interfaces.io_processor import IOChat, IORequest
from corefw.messages.plain import plain_problem
from corefw.server.protocol.completions import Completion, CompletionRequest
from corefw.server.usage import UsageTally

if TYPE_CHECKING:
    from corefw.server.generation import Generation

__all__ = ["answer_data", "chat_run", "check_data_fields"]

_MAX_DATA_DEPTH = 32


def check_data_fields(generation: Generation, fields: CompletionRequest) -> None:
    """Refuse what doesn't go with ``data``.

    Raises:
        RequestError: there is no processor, or a field that has no meaning.
    """
    if generation.state.processing is None:
        raise RequestError(
            "this server has no IO processor that takes data (--io-processor-plugin); send a prompt",
            param="data",
            code="unsupported_parameter",
        )
    others = {
        "prompt": fields.prompt is not None,
        "prompt_embeds": fields.prompt_embeds is not None,
        "stream": bool(fields.stream),
        "echo": bool(fields.echo),
    }
    for name, is_given in others.items():
        if is_given:
            raise RequestError(f"{name} doesn't go with data; leave it out", param=name)
    if problem := plain_problem(fields.data, max_depth=_MAX_DATA_DEPTH):
        raise RequestError(f"data must be plain, but it {problem}", param="data")


async def answer_data(generation: Generation, fields: CompletionRequest) -> Completion:
    """The whole way of one request with ``data``.

    Raises:
        RequestError, CapacityError, EngineError: as the processor and the engine say.
    """
    processing = generation.state.processing
    assert processing is not None, "check_data_fields saw to it"
    request = IORequest(params=generation.params, data=fields.data, cache_salt=fields.cache_salt)
    with processing.run(request) as run:
        run.parse()
        prompts = await run.prompts_async()
        generation = dataclasses.replace(generation, params=run.params)
        outputs, tally = await _generate(generation, prompts)
        data = await run.answer_async([as_io_outputs(each) for each in outputs])
    return Completion(
        id=generation.id,
        created=generation.created_s,
        model=generation.model,
        choices=[],
        usage=tally.usage(),
        data=data,
    )


async def _generate(
    generation: Generation, prompts: Sequence[ProcessedPrompt]
) -> tuple[list[list[CompletionOutput]], UsageTally]:
    n, max_model_len = generation.params.n, generation.state.engine.plan.max_model_len
    ids = [truncated(prompt.ids, generation.params, max_model_len) for prompt in prompts]
    outputs = [[CompletionOutput(index=index) for index in range(n)] for _ in prompts]
    tally = UsageTally(ids, n)
    updates = generation.updates(
        ids,
        ["data"] * len(prompts),
        [without_first(prompt.spans, len(prompt.ids) - len(kept)) for prompt, kept in zip(prompts, ids, strict=True)],
        [generation.source(prompt=prompt.text) for prompt in prompts],
    )
    async with aclosing(updates):
        async for index, update in updates:
            tally.add(index, update)
            outputs[index // n][index % n].add(update)
    return outputs, tally


def chat_run(
    generation: Generation,
    messages: list[dict[str, Any]],
    *,
    template_kwargs: Mapping[str, Any] | None,
    add_generation_prompt: bool,
    continue_final_message: bool,
) -> AbstractContextManager[IORun | None]:
    """A block with the processor's way for a chat that has parts besides text; None for any other chat."""
    processing = generation.state.processing
    if processing is None or not has_media(messages):
        return nullcontext()
    chat = IOChat(
        messages=messages,
        template_kwargs=template_kwargs,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
    )
    return processing.run(IORequest(params=generation.params, chat=chat, cache_salt=generation.fields.cache_salt))
