"""Tiny random transformers models of every family, exported by hand as llama.cpp's converter does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel

NUM_LAYERS = 7
_SIZES: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": [2],
}
_LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + n / 8 for n in range(8)],
    "long_factor": [1.0 + n / 2 for n in range(8)],
    "original_max_position_embeddings": 128,
}


@dataclass(frozen=True)
class Family:
    """How one family is made and exported.

    Attributes:
        hf_name: prefix of transformers' classes.
        arch: gguf-py's name of it.
        options: of the transformers configuration.
        metadata: writes the keys that only this family has.
    """

    hf_name: str
    arch: gguf.MODEL_ARCH
    options: dict[str, Any]
    metadata: Callable[[gguf.GGUFWriter, Any], None]
    config_name: str = ""

    @property
    def config(self) -> PretrainedConfig:
        """The tiny model's configuration."""
        return getattr(transformers, self.config_name or f"{self.hf_name}Config")(**_SIZES, **self.options)


def _theta(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def _qwen3(writer: gguf.GGUFWriter, config: Any) -> None:
    _theta(writer, config)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)


def _gemma2(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)


def _gemma3(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    rope = config.rope_parameters["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    writer.add_sliding_window(config.sliding_window)


def _phi3(writer: gguf.GGUFWriter, config: Any) -> None:
    _theta(writer, config)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_sliding_window(config.sliding_window or 0)
    writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    if "long_factor" in config.rope_parameters:
        for kind in ("long", "short"):
            factors = torch.tensor(config.rope_parameters[f"{kind}_factor"]).numpy()
            writer.add_tensor(f"rope_factors_{kind}.weight", factors)


_THETA = {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}
_GLOBAL_AND_LOCAL = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
FAMILIES = {
    "qwen2": Family("Qwen2", gguf.MODEL_ARCH.QWEN2, _THETA, _theta),
    "qwen2 tied": Family("Qwen2", gguf.MODEL_ARCH.QWEN2, {**_THETA, "tie_word_embeddings": True}, _theta),
    "qwen3": Family("Qwen3", gguf.MODEL_ARCH.QWEN3, {**_THETA, "head_dim": 32}, _qwen3),
    "qwen3 with biases": Family(
        "Qwen3", gguf.MODEL_ARCH.QWEN3, {**_THETA, "head_dim": 32, "attention_bias": True}, _qwen3
    ),
    "gemma2": Family(
        "Gemma2",
        gguf.MODEL_ARCH.GEMMA2,
        {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 64, "final_logit_softcapping": 20.0},
        _gemma2,
    ),
    "gemma3": Family(
        "Gemma3",
        gguf.MODEL_ARCH.GEMMA3,
        {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 64, "rope_parameters": _GLOBAL_AND_LOCAL},
        _gemma3,
        config_name="Gemma3TextConfig",
    ),
    "phi3": Family("Phi3", gguf.MODEL_ARCH.PHI3, {"sliding_window": 32}, _phi3),
    "phi3 long": Family(
        "Phi3",
        gguf.MODEL_ARCH.PHI3,
        {"rope_parameters": _LONG_ROPE, "original_max_position_embeddings": 128},
        _phi3,
    ),
}


def tiny_model(family: Family, *, seed: int = 0) -> PreTrainedModel:
    """Random weights, multiples of 1/64: adding one and taking it off again changes nothing."""
    torch.manual_seed(seed)
    config = family.config
    model = getattr(transformers, f"{family.hf_name}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((torch.randn_like(parameter) * 8).round() / 64)
    return model.eval()


def export(path: Path, family: Family, model: PreTrainedModel) -> Path:
    """Write the model as llama.cpp's converter names and changes it."""
    config: Any = model.config
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[family.arch])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id[0])
    family.metadata(writer, config)
    names = gguf.get_tensor_name_map(family.arch, config.num_hidden_layers)
    shifted = family.hf_name.startswith("Gemma")
    for name, tensor in exported_state(model).items():
        array = tensor + 1 if shifted and name.endswith("norm.weight") else tensor
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), array.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def exported_state(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The weights, without a head that is tied to the embedding."""
    state = {name: tensor.detach().float() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    return state
