"""Qwen2 and Qwen2.5: Llama's shape, with biases on query, key and value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corefw.models.decoder import DecoderForCausalLM, activation_op
from corefw.models.decoder_layers import DecoderStyle

__all__ = ["Qwen2ForCausalLM"]


class Qwen2ForCausalLM(DecoderForCausalLM):
    """Dense Qwen2 models."""

    def style(self, config: Mapping[str, Any]) -> DecoderStyle:
        return DecoderStyle(activation=activation_op(config), qkv_bias=True)
