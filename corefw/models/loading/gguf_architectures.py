"""What the GGUF exporter did to each family, one table each: tensor names, row orders, norm offsets.

A new family is one more ``GGUFArchitecture`` in ``ARCHITECTURES``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
        refused: keys, without the family's prefix, that would change the arithmetic in a way that isn't built.
    """

    name: str
    hf_class: str
    model_type: str
    tensors: Mapping[str, TensorRule]
    ignored: frozenset[str] = frozenset({"rope_freqs.weight"})
    constants: Mapping[str, Any] = field(default_factory=dict)
    refused: tuple[str, ...] = ()


def _projection(file_name: str, name: str, heads_key: str | None = None) -> dict[str, TensorRule]:
    """A linear layer's weight, and its bias that most files don't have."""
    source, target = f"blk.{{layer}}.{file_name}", f"model.layers.{{layer}}.{name}"
    return {
        f"{source}.weight": TensorRule(name=f"{target}.weight", heads_key=heads_key),
        f"{source}.bias": TensorRule(name=f"{target}.bias", heads_key=heads_key, required=False),
    }


_LLAMA = GGUFArchitecture(
    name="llama",
    hf_class="LlamaForCausalLM",
    model_type="llama",
    tensors={
        "token_embd.weight": TensorRule(name="model.embed_tokens.weight"),
        "output_norm.weight": TensorRule(name="model.norm.weight"),
        "output.weight": TensorRule(name="lm_head.weight", required=False),
        "blk.{layer}.attn_norm.weight": TensorRule(name="model.layers.{layer}.input_layernorm.weight"),
        "blk.{layer}.ffn_norm.weight": TensorRule(name="model.layers.{layer}.post_attention_layernorm.weight"),
        **_projection("attn_q", "self_attn.q_proj", "num_attention_heads"),
        **_projection("attn_k", "self_attn.k_proj", "num_key_value_heads"),
        **_projection("attn_v", "self_attn.v_proj"),
        **_projection("attn_output", "self_attn.o_proj"),
        **_projection("ffn_gate", "mlp.gate_proj"),
        **_projection("ffn_up", "mlp.up_proj"),
        **_projection("ffn_down", "mlp.down_proj"),
    },
    constants={"hidden_act": "silu"},
    refused=("expert_count", "attention.clamp_kqv", "attention.scale", "logit_scale", "residual_scale"),
)

ARCHITECTURES: dict[str, GGUFArchitecture] = {entry.name: entry for entry in (_LLAMA,)}
