"""When an output ends. The order of the checks is the meaning of ``finish_reason``, so it stands here alone."""

from __future__ import annotations

from typing import NamedTuple

from corefw.engine.request import Request
from corefw.messages.outputs import FinishReason

__all__ = ["Stop", "check_stop"]


class Stop(NamedTuple):
    """The end of an output.

    Attributes:
        reason: goes to the client.
        token_id: the stop token that the client named, None for the model's own end and for limits.
    """

    reason: FinishReason
    token_id: int | None = None


def check_stop(request: Request, max_model_len: int) -> Stop | None:
    """Whether the request's last token, an output token, ends it.

    1. The model's end tokens, unless they are to be ignored, then the client's stop tokens; both only from
       ``min_tokens`` output tokens on. 2. ``max_tokens``. 3. The context. So an end token at the limit is a stop.
    """
    params, token_ids = request.params, request.token_ids
    num_output_tokens = len(token_ids) - request.num_prompt_tokens
    if num_output_tokens >= params.min_tokens:
        token_id = token_ids[-1]
        if token_id in request.end_ids:
            return Stop(FinishReason.STOP)
        if token_id in request.stop_ids:
            return Stop(FinishReason.STOP, token_id)
    if params.max_tokens is not None and num_output_tokens >= params.max_tokens:
        return Stop(FinishReason.LENGTH)
    if len(token_ids) >= max_model_len:
        return Stop(FinishReason.LENGTH)
    return None
