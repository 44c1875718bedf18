"""What the GGUF exporter did to each family, one table each: tensor names, row orders, norm offsets.

A new family is one more ``GGUFArchitecture`` in ``ARCHITECTURES``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from corefw.models.loading.gguf_family_configs import as_read, gemma2_config, gemma3_config, phi3_config
from corefw.models.loading.gguf_values import GGUFValues

__all__ = ["ARCHITECTURES", "GGUFArchitecture", "TensorRule"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorRule:
    """Where a tensor of the file belongs, and what has to be undone.

    Attributes:
        name: Hugging Face name; ``{layer}`` stands for the layer's number.
        required: whether a file without it is damaged.
        heads_key: the exporter reordered the rows of each head from rotate-half to interleaved order; this key of
            the configuration has the number of heads. None: rows are as they were.
        offset: the exporter added this to every element (norms of families that compute with ``1 + weight``).
    """

    name: str
    required: bool = True
    heads_key: str | None = None
    offset: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class GGUFArchitecture:
    """One family.

    Attributes:
        name: value of ``general.architecture``.
        hf_class: class name in Hugging Face terms.
        model_type: ``model_type`` of a Hugging Face configuration.
        tensors: by name in the file; ``blk.{layer}.`` stands before those of a layer.
        ignored: tensors that are not weights (they are read as configuration, or not needed).
        constants: configuration values that are not in the file.
        finish: makes the configuration that is common to all families into this one's.
        refused: keys, without the family's prefix, that would change the arithmetic in a way that isn't built.
    """

    name: str
    hf_class: str
    model_type: str
    tensors: Mapping[str, TensorRule]
    ignored: frozenset[str] = frozenset({"rope_freqs.weight"})
    constants: Mapping[str, Any] = field(default_factory=dict)
    finish: Callable[[GGUFValues, dict[str, Any]], dict[str, Any]] = as_read
    refused: tuple[str, ...] = (
        "expert_count",
        "attention.clamp_kqv",
        "attention.scale",
        "logit_scale",
        "residual_scale",
    )


_LAYER = "model.layers.{layer}"


def _linear(
    file_name: str, name: str, *, bias: bool | None = False, heads_key: str | None = None
) -> dict[str, TensorRule]:
    """A linear layer's weight, and its bias: there always, never, or (None) in some files."""
    source, target = f"blk.{{layer}}.{file_name}", f"{_LAYER}.{name}"
    rules = {f"{source}.weight": TensorRule(name=f"{target}.weight", heads_key=heads_key)}
    if bias is not False:
        rules[f"{source}.bias"] = TensorRule(name=f"{target}.bias", heads_key=heads_key, required=bool(bias))
    return rules


def _norm(file_name: str, name: str, offset: float = 0.0) -> dict[str, TensorRule]:
    return {f"blk.{{layer}}.{file_name}.weight": TensorRule(name=f"{_LAYER}.{name}.weight", offset=offset)}


def _ends(offset: float = 0.0) -> dict[str, TensorRule]:
    """Embedding, last norm, head; without a head it is tied to the embedding."""
    return {
        "token_embd.weight": TensorRule(name="model.embed_tokens.weight"),
        "output_norm.weight": TensorRule(name="model.norm.weight", offset=offset),
        "output.weight": TensorRule(name="lm_head.weight", required=False),
    }


def _attention(*, bias: bool | None, output_bias: bool | None = False, permuted: bool = False) -> dict[str, TensorRule]:
    """Queries, keys, values and output apart from one another."""
    query_heads, key_heads = ("num_attention_heads", "num_key_value_heads") if permuted else (None, None)
    return {
        **_linear("attn_q", "self_attn.q_proj", bias=bias, heads_key=query_heads),
        **_linear("attn_k", "self_attn.k_proj", bias=bias, heads_key=key_heads),
        **_linear("attn_v", "self_attn.v_proj", bias=bias),
        **_linear("attn_output", "self_attn.o_proj", bias=output_bias),
    }


def _query_key_norms(offset: float = 0.0) -> dict[str, TensorRule]:
    return {**_norm("attn_q_norm", "self_attn.q_norm", offset), **_norm("attn_k_norm", "self_attn.k_norm", offset)}


def _gated_mlp(*, bias: bool | None = False) -> dict[str, TensorRule]:
    return {
        **_linear("ffn_gate", "mlp.gate_proj", bias=bias),
        **_linear("ffn_up", "mlp.up_proj", bias=bias),
        **_linear("ffn_down", "mlp.down_proj", bias=bias),
    }


_TWO_NORMS = {**_norm("attn_norm", "input_layernorm"), **_norm("ffn_norm", "post_attention_layernorm")}
# Gemma computes with 1 + weight; its exporter stores that sum.
_FOUR_NORMS = {
    **_norm("attn_norm", "input_layernorm", 1.0),
    **_norm("post_attention_norm", "post_attention_layernorm", 1.0),
    **_norm("ffn_norm", "pre_feedforward_layernorm", 1.0),
    **_norm("post_ffw_norm", "post_feedforward_layernorm", 1.0),
}

_LLAMA = GGUFArchitecture(
    name="llama",
    hf_class="LlamaForCausalLM",
    model_type="llama",
    tensors={
        **_ends(),
        **_TWO_NORMS,
        **_attention(bias=None, output_bias=None, permuted=True),
        **_gated_mlp(bias=None),
    },
    constants={"hidden_act": "silu"},
)
_QWEN2 = GGUFArchitecture(
    name="qwen2",
    hf_class="Qwen2ForCausalLM",
    model_type="qwen2",
    tensors={**_ends(), **_TWO_NORMS, **_attention(bias=True), **_gated_mlp()},
    constants={"hidden_act": "silu", "use_sliding_window": False},
)
_QWEN3 = GGUFArchitecture(
    name="qwen3",
    hf_class="Qwen3ForCausalLM",
    model_type="qwen3",
    tensors={**_ends(), **_TWO_NORMS, **_attention(bias=None, output_bias=None), **_query_key_norms(), **_gated_mlp()},
    constants={"hidden_act": "silu", "use_sliding_window": False},
)
_GEMMA2 = GGUFArchitecture(
    name="gemma2",
    hf_class="Gemma2ForCausalLM",
    model_type="gemma2",
    tensors={**_ends(1.0), **_FOUR_NORMS, **_attention(bias=None, output_bias=None), **_gated_mlp()},
    constants={"hidden_activation": "gelu_pytorch_tanh"},
    finish=gemma2_config,
)
_GEMMA3 = GGUFArchitecture(
    name="gemma3",
    hf_class="Gemma3ForCausalLM",
    model_type="gemma3_text",
    tensors={
        **_ends(1.0),
        **_FOUR_NORMS,
        **_attention(bias=None, output_bias=None),
        **_query_key_norms(1.0),
        **_gated_mlp(),
    },
    constants={"hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": None},
    finish=gemma3_config,
)
_PHI3 = GGUFArchitecture(
    name="phi3",
    hf_class="Phi3ForCausalLM",
    model_type="phi3",
    tensors={
        **_ends(),
        **_TWO_NORMS,
        **_linear("attn_qkv", "self_attn.qkv_proj"),
        **_linear("attn_output", "self_attn.o_proj"),
        **_linear("ffn_up", "mlp.gate_up_proj"),  # gate and up in one, as in the family's own checkpoints
        **_linear("ffn_down", "mlp.down_proj"),
    },
    ignored=frozenset({"rope_factors_long.weight", "rope_factors_short.weight"}),
    constants={"hidden_act": "silu"},
    finish=phi3_config,
)

ARCHITECTURES: dict[str, GGUFArchitecture] = {
    entry.name: entry for entry in (_LLAMA, _QWEN2, _QWEN3, _GEMMA2, _GEMMA3, _PHI3)
}
