"""The independent reference for Gemma 3: transformers in float32 on weights that the ``gguf`` package dequantised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

_LOCAL_THETA, _WINDOW_PERIOD = 10000.0, 6


def gemma_reference(path: Path) -> Gemma3ForCausalLM:
    """transformers' Gemma 3 with the file's weights, read by gguf-py."""
    reader = gguf.GGUFReader(path)
    config = _config(reader)
    model = Gemma3ForCausalLM(config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, config.num_hidden_layers)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    state = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight":  # tied
            continue
        tensor = stored[names.get_name(name, try_suffixes=(".weight",))]
        array = dequantize(tensor.data, tensor.tensor_type).reshape(tuple(parameter.shape))
        if name.endswith("norm.weight"):
            array = array - np.float32(1)  # the file holds what transformers computes
        state[name] = torch.from_numpy(np.array(array, dtype=np.float32))
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model.eval()


def _config(reader: gguf.GGUFReader) -> Gemma3TextConfig:
    def value(key: str) -> Any:
        return reader.fields[f"gemma3.{key}"].contents()

    embedding = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    return Gemma3TextConfig(
        vocab_size=int(embedding.shape[1]),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=value("attention.head_count"),
        num_key_value_heads=value("attention.head_count_kv"),
        head_dim=value("attention.key_length"),
        query_pre_attn_scalar=value("attention.key_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=value("context_length"),
        sliding_window=value("attention.sliding_window"),
        sliding_window_pattern=_WINDOW_PERIOD,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": value("rope.freq_base")},
            "sliding_attention": {"rope_type": "default", "rope_theta": _LOCAL_THETA},
        },
        attn_implementation="eager",
    )
