"""The independent reference: transformers in float32 on weights that the ``gguf`` package dequantised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from transformers import LlamaConfig, LlamaForCausalLM

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def reference_model(path: Path) -> LlamaForCausalLM:
    """transformers' Llama with the file's weights, read by gguf-py."""
    reader = GGUFReader(path)
    config = _config(reader)
    model = LlamaForCausalLM(config)
    state = {}
    for tensor in reader.tensors:
        array = dequantize(tensor.data, tensor.tensor_type).reshape(tuple(reversed(tensor.shape.tolist())))
        name = _name(tensor.name)
        if name.endswith("q_proj.weight"):
            array = _unpermute(array, config.num_attention_heads)
        elif name.endswith("k_proj.weight"):
            array = _unpermute(array, config.num_key_value_heads)
        state[name] = torch.from_numpy(np.array(array, dtype=np.float32))
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    model.load_state_dict(state)
    return model.eval()


def _field(reader: GGUFReader, key: str) -> Any:
    return reader.fields[f"llama.{key}"].contents()


def _config(reader: GGUFReader) -> LlamaConfig:
    names = {tensor.name for tensor in reader.tensors}
    return LlamaConfig(
        vocab_size=int(next(t for t in reader.tensors if t.name == "token_embd.weight").shape[1]),
        hidden_size=_field(reader, "embedding_length"),
        intermediate_size=_field(reader, "feed_forward_length"),
        num_hidden_layers=_field(reader, "block_count"),
        num_attention_heads=_field(reader, "attention.head_count"),
        num_key_value_heads=_field(reader, "attention.head_count_kv"),
        rms_norm_eps=_field(reader, "attention.layer_norm_rms_epsilon"),
        max_position_embeddings=_field(reader, "context_length"),
        rope_parameters={"rope_type": "default", "rope_theta": _field(reader, "rope.freq_base")},
        tie_word_embeddings="output.weight" not in names,
        attn_implementation="eager",
    )


def _name(name: str) -> str:
    top = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    if name in top:
        return top[name]
    _, layer, part, suffix = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{suffix}"


def _unpermute(array: np.ndarray, num_heads: int) -> np.ndarray:
    rows, columns = array.shape
    halves = array.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


@torch.inference_mode()
def greedy(model: LlamaForCausalLM, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """Free-running greedy continuations with transformers' own cache, prompts padded on the left."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    output = model.generate(
        ids, attention_mask=mask, max_new_tokens=num_tokens, min_new_tokens=num_tokens,
        do_sample=False, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    return output[:, longest:].tolist()


@torch.inference_mode()
def forced_logits(model: LlamaForCausalLM, token_ids: list[int]) -> torch.Tensor:
    """Logits [T, V] of one pass over all tokens."""
    return model(torch.tensor([token_ids]), use_cache=False).logits[0]
