"""Llama and models of its shape: rotary grouped-query attention, gated MLP, RMS norms before both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from corefw.errors import ModelFormatError
from corefw.interfaces.attention import AttentionLayerSpec
from corefw.models.decoder import DecoderForCausalLM, DecoderLayer
from corefw.models.layers.attention import Attention
from corefw.models.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from corefw.models.layers.norm import RMSNorm
from corefw.models.layers.rope import RotaryEmbedding, rope_parameters
from corefw.models.layers.sharding import split_evenly
from corefw.models.shape import head_size, num_kv_heads, sliding_window

if TYPE_CHECKING:
    from corefw.config.model_info import ModelInfo
    from corefw.models.layers.context import BuildContext

__all__ = ["LlamaForCausalLM"]


class LlamaAttention(nn.Module):
    """Projections, rotation, attention."""

    def __init__(self, config: Mapping[str, Any], index: int, rotary: RotaryEmbedding, build: BuildContext) -> None:
        super().__init__()
        width, size = int(config["hidden_size"]), head_size(config)
        bias = bool(config.get("attention_bias", False))
        heads = int(config["num_attention_heads"])
        self.qkv_proj = QKVParallelLinear(width, heads, num_kv_heads(config), size, bias=bias, build=build)
        self.o_proj = RowParallelLinear(self.qkv_proj.heads, width, bias=bias, build=build)
        self.attn = Attention(
            AttentionLayerSpec(
                name=f"layers.{index}.self_attn",
                num_heads=self.qkv_proj.num_heads,
                num_kv_heads=self.qkv_proj.num_kv_heads,
                head_size=size,
                scale=size**-0.5,
                sliding_window=sliding_window(config, index),
            ),
            build,
        )
        self._rotary = (rotary,)  # shared by the layers: in a tuple, it isn't a submodule of each

    def forward(self, positions_T: torch.Tensor, hidden_TE: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv_proj.split(self.qkv_proj(hidden_TE))
        query, key = self._rotary[0](positions_T, query, key)
        out_TE: torch.Tensor = self.o_proj(self.attn(query, key, value))
        return out_TE


class LlamaMLP(nn.Module):
    """down(silu(gate) · up)."""

    def __init__(self, config: Mapping[str, Any], build: BuildContext) -> None:
        super().__init__()
        width = int(config["hidden_size"])
        bias = bool(config.get("mlp_bias", False))
        inner = split_evenly("intermediate size", int(config["intermediate_size"]), build.tp)
        self.gate_up_proj = MergedColumnParallelLinear(width, {"gate": inner, "up": inner}, bias=bias, build=build)
        self.down_proj = RowParallelLinear(inner, width, bias=bias, build=build)
        self._activate = build.binder.bind("silu_and_mul", width=inner.size)

    def forward(self, hidden_TE: torch.Tensor) -> torch.Tensor:
        out_TE: torch.Tensor = self.down_proj(self._activate(self.gate_up_proj(hidden_TE)))
        return out_TE


class LlamaDecoderLayer(DecoderLayer):
    """Norm, attention, norm, MLP."""

    def __init__(self, config: Mapping[str, Any], index: int, rotary: RotaryEmbedding, build: BuildContext) -> None:
        super().__init__()
        width, eps = int(config["hidden_size"]), float(config["rms_norm_eps"])
        self.input_layernorm = RMSNorm(width, eps, build)
        self.self_attn = LlamaAttention(config, index, rotary, build)
        self.post_attention_layernorm = RMSNorm(width, eps, build)
        self.mlp = LlamaMLP(config, build)

    @property
    def attention(self) -> Attention:  # type: ignore[override]
        return self.self_attn.attn

    def forward(
        self, positions_T: torch.Tensor, hidden_TE: torch.Tensor, residual_TE: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden_TE, residual_TE = self.input_layernorm(hidden_TE, residual_TE)
        hidden_TE = self.self_attn(positions_T, hidden_TE)
        hidden_TE, residual_TE = self.post_attention_layernorm(hidden_TE, residual_TE)
        return self.mlp(hidden_TE), residual_TE


class LlamaForCausalLM(DecoderForCausalLM):
    """Llama 1 to 3, SmolLM2, Mistral and what else declares itself as such."""

    packed: ClassVar[Mapping[str, tuple[str, str]]] = {
        "q_proj": ("qkv_proj", "q"),
        "k_proj": ("qkv_proj", "k"),
        "v_proj": ("qkv_proj", "v"),
        "gate_proj": ("gate_up_proj", "gate"),
        "up_proj": ("gate_up_proj", "up"),
    }

    def build_layers(self, info: ModelInfo, build: BuildContext) -> Sequence[DecoderLayer]:
        config = info.hf_config
        activation = config.get("hidden_act", "silu")
        if activation != "silu":
            raise ModelFormatError(f"{info.architecture} with hidden_act {str(activation)[:40]!r}; only silu is known")
        rotary = RotaryEmbedding(rope_parameters(config, head_size(config)), head_size(config), build)
        return [LlamaDecoderLayer(config, index, rotary, build) for index in range(info.num_layers)]
