"""A request's news as the front end gets it."""

from __future__ import annotations

from corefw.engine.request import Request
from corefw.messages.outputs import EngineCoreOutput, FinishReason, PositionLogprobs, PromptLogprobs
from corefw.messages.request import PlainDict

__all__ = ["news_of"]

_NOTHING: PlainDict = {}


def news_of(
    request: Request,
    token_ids: list[int],
    *,
    logprobs: list[PositionLogprobs] | None = None,
    prompt_logprobs: PromptLogprobs | None = None,
    finish_reason: FinishReason | None = None,
    stop_reason: int | None = None,
    error: str | None = None,
    extra: PlainDict = _NOTHING,
) -> EngineCoreOutput:
    """What a step, or an end, brought. The request's first news also tell how much of its prompt was cached."""
    num_cached_tokens = None if request.has_output else request.num_cached_tokens or 0
    request.has_output = True
    return EngineCoreOutput(
        request_id=request.request_id,
        new_token_ids=token_ids,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        num_cached_tokens=num_cached_tokens,
        error=error,
        extra=extra,
    )
