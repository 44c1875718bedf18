"""Gemma 2: norms around attention and MLP, capped scores and logits, a window in every other layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from corefw.errors import ModelFormatError
from corefw.models.decoder import DecoderForCausalLM, activation_op
from corefw.models.decoder_layers import DecoderStyle, SandwichNormLayer
from corefw.models.layers.norm import RMSNormPlusOne
from corefw.models.shape import head_size

__all__ = ["Gemma2ForCausalLM"]


class Gemma2ForCausalLM(DecoderForCausalLM):
    """Gemma 2 text models."""

    layer_class: ClassVar[type[SandwichNormLayer]] = SandwichNormLayer
    head_norms: ClassVar[bool] = False

    def style(self, config: Mapping[str, Any]) -> DecoderStyle:
        if config.get("use_bidirectional_attention"):
            raise ModelFormatError("use_bidirectional_attention is set: the model is an encoder, not a decoder")
        bias = bool(config.get("attention_bias", False))
        return DecoderStyle(
            activation=activation_op(config, default="gelu_pytorch_tanh"),
            qkv_bias=bias,
            output_bias=bias,
            norm=RMSNormPlusOne,
            head_norms=self.head_norms,
            scale=(config.get("query_pre_attn_scalar") or head_size(config)) ** -0.5,
            score_cap=config.get("attn_logit_softcapping"),
            logit_cap=config.get("final_logit_softcapping"),
            embedding_scale=int(config["hidden_size"]) ** 0.5,
        )
