"""What a request must be to run here at all."""

from __future__ import annotations

from corefw.config.engine_config import SchedulerConfig
from corefw.errors import ContextLengthError, RequestError
from corefw.messages.request import EngineCoreRequest

__all__ = ["check_request"]


def check_request(request: EngineCoreRequest, limits: SchedulerConfig, max_model_len: int, vocab_size: int) -> None:
    """Refuse what could never be scheduled, or would take a step's other requests down.

    Of lengths only the prompt's counts: outputs that came with the request were produced under the same limits.

    Raises:
        RequestError: the request can't run with these limits.
    """
    if request.params.n != 1:
        raise RequestError(f"the engine core takes n=1, got {request.params.n}; split the request before", param="n")
    num_prompt_tokens = len(request.prompt_ids)
    if num_prompt_tokens == 0:
        raise RequestError("the prompt is empty; send at least one token", param="prompt")
    if num_prompt_tokens >= max_model_len:
        raise ContextLengthError(
            f"the prompt has {num_prompt_tokens} tokens and the context {max_model_len}; at least one token must be "
            f"left for the output, so send at most {max_model_len - 1} tokens",
            param="prompt",
        )
    for param, ids in (("prompt", request.prompt_ids), ("prior_output_ids", request.prior_output_ids)):
        if ids and (min(ids) < 0 or max(ids) >= vocab_size):
            raise RequestError(
                f"the {param} has a token id that the model's embedding lacks; ids are in [0, {vocab_size - 1}]",
                param=param,
            )
    budget = limits.max_num_batched_tokens
    if not limits.enable_chunked_prefill and num_prompt_tokens > budget:
        raise RequestError(
            f"the prompt has {num_prompt_tokens} tokens, and without chunked prefill a step computes at most {budget}; "
            f"shorten it, or serve with --enable-chunked-prefill or a larger --max-num-batched-tokens",
            param="prompt",
        )
