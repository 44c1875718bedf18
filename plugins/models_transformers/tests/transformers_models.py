"""Tiny random models of many families, transformers' own tokens for them, and what the pack makes of them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from corefw.interfaces.model import ModelRequest
from corefw.models.layers.context import BuildContext
from corefw.testing.paged_loop import PagedLoop, model_info
from corefw.testing.tiny_models import write_tiny_tokenizer
from corefw_models_transformers.model import TransformersForCausalLM

# Sizes that are no multiples of a vector's width, so that a value's place in memory would show.
_SIZES = {
    "vocab_size": 259,
    "hidden_size": 24,
    "intermediate_size": 83,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "bos_token_id": 257,
    "eos_token_id": 258,
    "pad_token_id": None,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 21}

FAMILIES: dict[str, dict[str, Any]] = {
    "biogpt": {},
    "cohere": {},
    "cohere2": {"sliding_window": 21, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "exaone4": {"sliding_window": 21, "sliding_window_pattern": 2},
    "glm4": {"head_dim": 8},
    "gpt2": {},
    "gpt_bigcode": {},
    "gpt_neox": {},
    "gptj": {"rotary_dim": 4},
    "granite": {"logits_scaling": 3.0, "attention_multiplier": 0.4, "residual_multiplier": 0.6},
    "llama": {},
    "mixtral": {"num_local_experts": 5, **_EXPERTS},
    "nemotron": {},
    "olmo2": {},
    "olmo3": {"sliding_window": 21},
    "opt": {"ffn_dim": 83, "word_embed_proj_dim": 24},
    "phi": {},
    "qwen2_moe": {"num_experts": 5, "shared_expert_intermediate_size": 19, **_EXPERTS},
    "qwen3_moe": {"num_experts": 5, "head_dim": 8, **_EXPERTS},
    "smollm3": {},
    "stablelm": {},
    "starcoder2": {"sliding_window": 21},
}


def write_family(path: Path, family: str, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a random model as transformers saves it, with a tokenizer; returns ``path``."""
    config = AutoConfig.for_model(family, **{**_SIZES, **FAMILIES.get(family, {}), **overrides})
    return write_model(path, AutoModelForCausalLM.from_config(config), seed=seed)


def write_model(path: Path, model: Any, *, seed: int = 0) -> Path:
    """Give a model random weights and write it."""
    chance = torch.Generator().manual_seed(seed)
    tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=chance)
        if parameter.dim() == 1 and not name.endswith("bias"):
            parameter.data.add_(noise, alpha=0.2)
        elif parameter.dim() == 1:
            parameter.data.copy_(noise * 0.3)
        elif id(parameter) in tables:  # small, or a model with a tied head repeats its last token
            parameter.data.copy_(noise * 0.5)
        else:
            parameter.data.copy_(noise * (2.0 / 24**0.5))
    model.save_pretrained(path)
    write_tiny_tokenizer(path)
    return path


def prompts(lengths: Sequence[int] = (1, 7, 20, 33, 50, 3, 64, 12)) -> list[list[int]]:
    """One prompt of each length."""
    chance = random.Random(3)
    return [[chance.randrange(256) for _ in range(length)] for length in lengths]


def reference(path: Path) -> Any:
    """The model as transformers runs it, in float32."""
    # Its grouped experts need widths that are multiples of 4.
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, experts_implementation="eager").eval()


def reference_tokens(path: Path, asked: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
    """What transformers' greedy ``generate`` says, each prompt alone."""
    model = reference(path)
    told = []
    for ids in asked:
        row = torch.tensor([ids])
        options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": num_tokens}
        told.append(model.generate(row, attention_mask=torch.ones_like(row), **options)[0, len(ids) :].tolist())
    return told


def built(path: Path, build: BuildContext, *, trusted: bool = False) -> TransformersForCausalLM:
    """The pack's model of a directory, with its weights."""
    stated = json.loads((path / "config.json").read_text(encoding="utf-8"))
    known = {"max_position_embeddings": 256, "vocab_size": 259, "eos_token_id": 258}
    info = model_info({**known, "architectures": stated["architectures"]}, str(path))
    model = TransformersForCausalLM(ModelRequest(info=info, dtype=build.dtype_name, trust_remote_code=trusted), build)
    model.load_weights(iter(load_file(path / "model.safetensors").items()))
    return model.eval().requires_grad_(False)


def in_random_steps(loop: PagedLoop, sequences: Sequence[Sequence[int]], seed: int) -> list[torch.Tensor]:
    """Every sequence's logits, computed in steps that mix and cut them by chance."""
    chance = random.Random(seed)
    rows: dict[int, list[torch.Tensor]] = {index: [] for index in range(len(sequences))}
    left = {index: list(ids) for index, ids in enumerate(sequences)}
    while left:
        chosen = chance.sample(sorted(left), chance.randint(1, len(left)))
        chunks = {index: left[index][: chance.choice((1, 1, 2, 7, 16, 50))] for index in chosen}
        for index, logits in loop.step(chunks).items():
            rows[index].append(logits)
            left[index] = left[index][len(chunks[index]) :]
        left = {index: ids for index, ids in left.items() if ids}
    return [torch.cat(rows[index]) for index in range(len(sequences))]
