"""A request's news as the front end gets it."""

from __future__ import annotations

import time

from corefw.engine.request import Request
from corefw.messages.outputs import (
    EngineCoreOutput,
    ErrorKind,
    FinishReason,
    PositionLogprobs,
    PromptLogprobs,
    RequestTimes,
)
from corefw.messages.plain import valid_text
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
    error_kind: ErrorKind = ErrorKind.ENGINE,
    extra: PlainDict = _NOTHING,
) -> EngineCoreOutput:
    """What a step, or an end, brought. The request's first news also tell of its prompt's cached part and its times."""
    num_cached_tokens, times = None, None
    if not request.has_output:
        request.has_output = True
        num_cached_tokens = request.num_cached_tokens or 0
        times = _times(request, bool(token_ids))
    return EngineCoreOutput(
        request_id=request.request_id,
        new_token_ids=token_ids,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        num_cached_tokens=num_cached_tokens,
        times=times,
        error=None if error is None else valid_text(error),
        error_kind=error_kind,
        extra=extra,
    )


def _times(request: Request, has_token: bool) -> RequestTimes | None:
    if request.scheduled_s is None:
        return None
    return RequestTimes(request.scheduled_s, time.monotonic() if has_token else None)
