"""What embeddings in a prompt must be to be computed here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from corefw.errors import RequestError

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.messages.request import EmbeddingSpan, EngineCoreRequest

__all__ = ["check_embeds"]

_FLOAT32_BYTES = np.dtype(np.float32).itemsize


def check_embeds(request: EngineCoreRequest, config: EngineConfig) -> None:
    """Refuse spans that the worker couldn't place: they would take the step's other requests down.

    Raises:
        RequestError: this engine takes no embeddings, or not these.
    """
    if not request.prompt_embeds:
        return
    if not config.model.enable_prompt_embeds:
        raise RequestError(
            "this engine takes no embeddings; start it with --enable-prompt-embeds", param="prompt_embeds"
        )
    if request.params.prompt_logprobs is not None:
        raise RequestError(
            "positions given as embeddings have no token ids, so there are no prompt_logprobs; leave it out",
            param="prompt_logprobs",
        )
    width = int(config.model_info.hf_config["hidden_size"])
    free_from = 0
    for span in request.prompt_embeds:
        _check_span(span, width)
        if span.offset < free_from or span.stop > len(request.prompt_ids):
            raise RequestError(
                f"embeddings at positions {span.offset} to {span.stop} must lie behind those before and within the "
                f"prompt of {len(request.prompt_ids)} tokens",
                param="prompt_embeds",
            )
        free_from = span.stop


def _check_span(span: EmbeddingSpan, width: int) -> None:
    values = span.values
    fits = values.dtype == "float32" and len(values.shape) == 2 and values.shape[0] >= 1 and values.shape[1] == width
    if not fits or math.prod(values.shape) * _FLOAT32_BYTES != len(values.data):
        raise RequestError(
            f"embeddings must be float32 [positions, {width}], got {values!r} with {len(values.data)} bytes",
            param="prompt_embeds",
        )
