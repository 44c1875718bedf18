"""Tiny models of every family, in transformers and here."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from corefw.builtins.model_loaders.safetensors import SafetensorsLoader
from corefw.builtins.model_sources.local import LocalDirectory
from corefw.config.model_info import ModelInfo
from corefw.interfaces.model_source import SourceOptions
from corefw.models.gemma2 import Gemma2ForCausalLM
from corefw.models.gemma3 import Gemma3ForCausalLM
from corefw.models.layers.context import BuildContext
from corefw.models.llama import LlamaForCausalLM
from corefw.models.phi3 import Phi3ForCausalLM
from corefw.models.qwen2 import Qwen2ForCausalLM
from corefw.models.qwen3 import Qwen3ForCausalLM
from corefw.testing.paged_loop import PagedLoop, cpu_build_context
from corefw.testing.tiny_models import write_tiny

CLASSES: dict[str, Any] = {
    "LlamaForCausalLM": LlamaForCausalLM,
    "MistralForCausalLM": LlamaForCausalLM,
    "Qwen2ForCausalLM": Qwen2ForCausalLM,
    "Qwen3ForCausalLM": Qwen3ForCausalLM,
    "Gemma2ForCausalLM": Gemma2ForCausalLM,
    "Gemma3ForCausalLM": Gemma3ForCausalLM,
    "Phi3ForCausalLM": Phi3ForCausalLM,
}

YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 3.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.05, 1.1, 1.3],
    "long_factor": [1.0, 2.0, 4.5, 9.0],
}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen2, every head its own": ("qwen2", {"num_key_value_heads": 6, "tie_word_embeddings": False}),
    "qwen2, last layers with a window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 19, "max_window_layers": 1},
    ),
    "qwen2, window not in use": ("qwen2", {"use_sliding_window": False, "sliding_window": 19}),
    "qwen2, yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen3": ("qwen3", {}),
    "qwen3, one KV head, tied": ("qwen3", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "qwen3, biases": ("qwen3", {"attention_bias": True}),
    "qwen3, yarn without its factor": (
        "qwen3",
        {"rope_parameters": {**YARN, "truncate": False, "attention_factor": 1.0}},
    ),
    "gemma2": ("gemma2", {}),
    "gemma2, every head its own": ("gemma2", {"num_key_value_heads": 6}),
    "gemma2, no caps": ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma2, odd layers": ("gemma2", {"layer_types": ["full_attention", "full_attention", "sliding_attention"]}),
    "gemma3": ("gemma3_text", {}),
    "gemma3, one KV head": ("gemma3_text", {"num_key_value_heads": 1, "sliding_window": 8}),
    "gemma3, other bases": (
        "gemma3_text",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 50_000.0, "factor": 4.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            }
        },
    ),
    "phi3": ("phi3", {}),
    "phi3, window": ("phi3", {"sliding_window": 21, "num_key_value_heads": 6}),
    "phi3, part of a head": ("phi3", {"partial_rotary_factor": 0.5, "tie_word_embeddings": True}),
    "phi3, long rope": ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 64}),
    "llama, dynamic": ("llama", {"rope_parameters": DYNAMIC}),
    "llama, yarn": ("llama", {"rope_parameters": {**YARN, "mscale": 1.3, "mscale_all_dim": 0.7}}),
}


def theirs(path: Path) -> PreTrainedModel:
    """The model in a directory, run by transformers."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
    return model


def read_info(path: Path) -> ModelInfo:
    files = LocalDirectory().resolve(str(path), SourceOptions(cache_dir=str(path / "cache")))
    return SafetensorsLoader().read_info(files)


def ours(path: Path, build: BuildContext) -> Any:
    """The same, built here."""
    info = read_info(path)
    model = CLASSES[info.architecture](info, build)
    model.load_weights(SafetensorsLoader().weights(info, build.dtype))
    return model


def loop_over(path: Path, *, block_size: int = 16, max_model_len: int = 256) -> PagedLoop:
    build = cpu_build_context(max_model_len=max_model_len)
    return PagedLoop(ours(path, build), build, block_size=block_size)


def write_variant(path: Path, variant: str) -> Path:
    family, changes = VARIANTS[variant]
    return write_tiny(path, family, **changes)


@lru_cache
def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def their_logits(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids]), use_cache=False).logits[0]


def their_greedy(model: PreTrainedModel, ids: list[int], count: int) -> list[int]:
    tokens = list(ids)
    while len(tokens) < len(ids) + count:
        tokens.append(int(their_logits(model, tokens)[-1].argmax()))
    return tokens[len(ids) :]
