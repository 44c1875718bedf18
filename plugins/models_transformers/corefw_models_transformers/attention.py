"""The two attention functions that are registered with transformers.

Shapes: T tokens, H query heads, K KV heads, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface

from corefw.errors import EngineError
from corefw.models.layers.attention import Attention

__all__ = ["ATTENTION", "place_attention"]

ATTENTION = "corefw"
_PLACE = "corefw_attention"


def place_attention(module: nn.Module, attention: Attention) -> None:
    """Let ``module``, which computes a layer's attention, use ``attention``."""
    module.__dict__[_PLACE] = attention  # not a submodule: it has no weights, and names of weights stay as they are


def _attend(
    module: nn.Module,
    query_1HTD: torch.Tensor,
    key_1KTD: torch.Tensor,
    value_1KTD: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001 - who sees whom is the backend's business
    **_: Any,
) -> tuple[torch.Tensor, None]:
    attention = module.__dict__.get(_PLACE)
    if attention is None:
        raise EngineError(f"{type(module).__name__} computes attention in a place where there was none at the start")
    query_THD, key_TKD, value_TKD = (t.transpose(1, 2)[0].contiguous() for t in (query_1HTD, key_1KTD, value_1KTD))
    return attention(query_THD, key_TKD, value_TKD)[None], None


# No mask is registered under this name: transformers then makes none.
AttentionInterface.register(ATTENTION, _attend)
