"""Llama and models of its shape: rotary grouped-query attention, gated MLP, RMS norms before both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corefw.models.decoder import DecoderForCausalLM, activation_op
from corefw.models.decoder_layers import DecoderStyle

__all__ = ["LlamaForCausalLM"]


class LlamaForCausalLM(DecoderForCausalLM):
    """Llama 1 to 3, SmolLM2, Mistral and what else declares itself as such."""

    def style(self, config: Mapping[str, Any]) -> DecoderStyle:
        bias = bool(config.get("attention_bias", False))
        return DecoderStyle(
            activation=activation_op(config),
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=bool(config.get("mlp_bias", False)),
        )
