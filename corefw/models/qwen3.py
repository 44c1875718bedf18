"""Qwen3: Llama's shape, with a norm of each query and key head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corefw.models.decoder import DecoderForCausalLM, activation_op
from corefw.models.decoder_layers import DecoderStyle

__all__ = ["Qwen3ForCausalLM"]


class Qwen3ForCausalLM(DecoderForCausalLM):
    """Dense Qwen3 models."""

    def style(self, config: Mapping[str, Any]) -> DecoderStyle:
        bias = bool(config.get("attention_bias", False))
        return DecoderStyle(activation=activation_op(config), qkv_bias=bias, output_bias=bias, head_norms=True)
