"""The layers that decoders are made of, and what distinguishes those of one family from another's.

Shapes: T tokens, E model width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from corefw.interfaces.attention import AttentionLayerSpec
from corefw.models.layers.attention import Attention
from corefw.models.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from corefw.models.layers.norm import RMSNorm
from corefw.models.layers.rope import RotaryEmbedding
from corefw.models.layers.sharding import split_evenly
from corefw.models.shape import head_size, num_kv_heads, sliding_window

if TYPE_CHECKING:
    from corefw.models.layers.context import BuildContext

__all__ = ["DecoderLayer", "DecoderStyle", "GatedMLP", "PreNormLayer", "SandwichNormLayer", "SelfAttention"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderStyle:
    """What a family does differently.

    Attributes:
        activation: op of the gated MLP.
        qkv_bias: whether query, key and value have one.
        output_bias: whether the attention's output has one.
        mlp_bias: whether the MLP's projections have one.
        norm: of every norm in the model.
        head_norms: whether each query and key head is normed before it is turned.
        scale: of attention scores; None is one over the root of the head size.
        score_cap: bound on attention scores.
        logit_cap: bound on logits.
        embedding_scale: factor on embeddings, rounded to the model's dtype.
    """

    activation: str = "silu_and_mul"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    norm: type[RMSNorm] = RMSNorm
    head_norms: bool = False
    scale: float | None = None
    score_cap: float | None = None
    logit_cap: float | None = None
    embedding_scale: float | None = None


class SelfAttention(nn.Module):
    """Projections, norms of heads, rotation, attention."""

    def __init__(
        self,
        config: Mapping[str, Any],
        index: int,
        style: DecoderStyle,
        rotary: RotaryEmbedding,
        build: BuildContext,
    ) -> None:
        super().__init__()
        width, size = int(config["hidden_size"]), head_size(config)
        heads = int(config["num_attention_heads"])
        self.qkv_proj = QKVParallelLinear(width, heads, num_kv_heads(config), size, bias=style.qkv_bias, build=build)
        self.o_proj = RowParallelLinear(self.qkv_proj.heads, width, bias=style.output_bias, build=build)
        eps = float(config["rms_norm_eps"])
        self.q_norm = style.norm(size, eps, build) if style.head_norms else None
        self.k_norm = style.norm(size, eps, build) if style.head_norms else None
        self.attn = Attention(
            AttentionLayerSpec(
                name=f"layers.{index}.self_attn",
                num_heads=self.qkv_proj.num_heads,
                num_kv_heads=self.qkv_proj.num_kv_heads,
                head_size=size,
                scale=size**-0.5 if style.scale is None else style.scale,
                sliding_window=sliding_window(config, index),
                soft_cap=style.score_cap,
            ),
            build,
        )
        self._rotary = (rotary,)  # shared by the layers: in a tuple, it isn't a submodule of each

    def forward(self, positions_T: torch.Tensor, hidden_TE: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv_proj.split(self.qkv_proj(hidden_TE))
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm.each_head(query), self.k_norm.each_head(key)
        query, key = self._rotary[0](positions_T, query, key)
        out_TE: torch.Tensor = self.o_proj(self.attn(query, key, value))
        return out_TE


class GatedMLP(nn.Module):
    """down(activation(gate) · up)."""

    def __init__(self, config: Mapping[str, Any], style: DecoderStyle, build: BuildContext) -> None:
        super().__init__()
        width, bias = int(config["hidden_size"]), style.mlp_bias
        inner = split_evenly("intermediate size", int(config["intermediate_size"]), build.tp)
        self.gate_up_proj = MergedColumnParallelLinear(width, {"gate": inner, "up": inner}, bias=bias, build=build)
        self.down_proj = RowParallelLinear(inner, width, bias=bias, build=build)
        self._activate = build.binder.bind(style.activation, width=inner.size)

    def forward(self, hidden_TE: torch.Tensor) -> torch.Tensor:
        out_TE: torch.Tensor = self.down_proj(self._activate(self.gate_up_proj(hidden_TE)))
        return out_TE


class DecoderLayer(nn.Module):
    """One layer of a decoder.

    ``forward(positions_T, hidden_TE, residual_TE | None)`` gives what the layer adds and the residual stream before
    that addition; the next norm adds them up.

    Attributes:
        attention: the layer's attention, for binding pages and for taps.
    """

    attention: Attention


class _AttentionMLPLayer(DecoderLayer):
    """Attention and MLP; subclasses say which norms there are, and where.

    Attributes:
        norms: names of norms of the model's width.
    """

    norms: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        config: Mapping[str, Any],
        index: int,
        style: DecoderStyle,
        rotary: RotaryEmbedding,
        build: BuildContext,
    ) -> None:
        super().__init__()
        self.self_attn = SelfAttention(config, index, style, rotary, build)
        self.mlp = GatedMLP(config, style, build)
        for name in self.norms:
            self.add_module(name, style.norm(int(config["hidden_size"]), float(config["rms_norm_eps"]), build))

    @property
    def attention(self) -> Attention:  # type: ignore[override]
        return self.self_attn.attn


class PreNormLayer(_AttentionMLPLayer):
    """Norm, attention, norm, MLP."""

    input_layernorm: RMSNorm
    post_attention_layernorm: RMSNorm
    norms: ClassVar[tuple[str, ...]] = ("input_layernorm", "post_attention_layernorm")

    def forward(
        self, positions_T: torch.Tensor, hidden_TE: torch.Tensor, residual_TE: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden_TE, residual_TE = self.input_layernorm(hidden_TE, residual_TE)
        hidden_TE = self.self_attn(positions_T, hidden_TE)
        hidden_TE, residual_TE = self.post_attention_layernorm(hidden_TE, residual_TE)
        return self.mlp(hidden_TE), residual_TE


class SandwichNormLayer(_AttentionMLPLayer):
    """Norm, attention, norm; norm, MLP, norm: what is added to the stream is normed too."""

    input_layernorm: RMSNorm
    post_attention_layernorm: RMSNorm
    pre_feedforward_layernorm: RMSNorm
    post_feedforward_layernorm: RMSNorm
    norms: ClassVar[tuple[str, ...]] = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )

    def forward(
        self, positions_T: torch.Tensor, hidden_TE: torch.Tensor, residual_TE: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden_TE, residual_TE = self.input_layernorm(hidden_TE, residual_TE)
        hidden_TE, _ = self.post_attention_layernorm(self.self_attn(positions_T, hidden_TE), None)
        hidden_TE, residual_TE = self.pre_feedforward_layernorm(hidden_TE, residual_TE)
        hidden_TE, _ = self.post_feedforward_layernorm(self.mlp(hidden_TE), None)
        return hidden_TE, residual_TE
