"""From a prompt and its parameters to what the core computes: one request for each of the n outputs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

import msgspec

from corefw.errors import ContextLengthError, RequestError
from corefw.frontend.prompt_embeds import check_embeds_params
from corefw.frontend.seeds import new_seed, output_seed
from corefw.frontend.token_params import check_choosable
from corefw.messages.request import EmbeddingSpan, EngineCoreRequest, PlainDict
from corefw.messages.sampling import SamplingParams

__all__ = ["complete_params", "core_requests"]


def complete_params(params: SamplingParams, num_prompt_tokens: int, max_model_len: int) -> SamplingParams:
    """The parameters with seed and limit filled in.

    Raises:
        RequestError: empty prompt.
        ContextLengthError: prompt, or prompt and ``max_tokens``, exceed the context.
    """
    if num_prompt_tokens == 0:
        raise RequestError("the prompt is empty; send at least one token", param="prompt")
    if num_prompt_tokens >= max_model_len:
        raise ContextLengthError(
            f"the prompt has {num_prompt_tokens} tokens, but the context length is {max_model_len} tokens and at least "
            "one is needed for the output; shorten the prompt"
        )
    if params.max_tokens is not None and num_prompt_tokens + params.max_tokens > max_model_len:
        raise ContextLengthError(
            f"the context length is {max_model_len} tokens, but the prompt has {num_prompt_tokens} tokens and "
            f"max_tokens is {params.max_tokens}, together {num_prompt_tokens + params.max_tokens}; shorten one of them",
            param="max_tokens",
        )
    max_tokens = max_model_len - num_prompt_tokens if params.max_tokens is None else params.max_tokens
    seed = new_seed() if params.seed is None else params.seed
    return msgspec.structs.replace(params, max_tokens=max_tokens, seed=seed)


def core_requests(
    prompt_ids: list[int],
    params: SamplingParams,
    *,
    eos_ids: Sequence[int],
    priority: int = 0,
    cache_salt: str | None = None,
    extra: PlainDict | None = None,
    prompt_embeds: Sequence[EmbeddingSpan] = (),
) -> list[EngineCoreRequest]:
    """One request an output, under new ids.

    Args:
        prompt_ids: of all of them.
        params: from ``complete_params``.
        eos_ids: the model's end tokens.
        priority, cache_salt, extra, prompt_embeds: see ``EngineCoreRequest``.

    Raises:
        RequestError: the prompt has embeddings, and these parameters can't go with them; or parameters forbid every
            token that others allow.
    """
    check_embeds_params(params, prompt_embeds)
    check_choosable(params, eos_ids)
    name = uuid.uuid4().hex
    arrival_s = time.time()
    assert params.seed is not None, "filled in by complete_params"
    return [
        EngineCoreRequest(
            request_id=name if params.n == 1 else f"{name}-{index}",
            prompt_ids=prompt_ids,
            params=msgspec.structs.replace(params, n=1, seed=output_seed(params.seed, index)),
            eos_ids=tuple(eos_ids),
            arrival_s=arrival_s,
            priority=priority,
            cache_salt=cache_salt,
            extra=extra or {},
            prompt_embeds=tuple(prompt_embeds),
        )
        for index in range(params.n)
    ]
