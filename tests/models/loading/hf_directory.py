"""Writes small Hugging Face model directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy.typing as npt
from safetensors.numpy import save_file

from corefw.config.model_info import ModelFiles
from corefw.models.loading.model_directory import weight_files
from tests.models.loading.tiny_gguf import llama_arrays

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "eos_token_id": 2,
    "bos_token_id": 1,
}


def write_directory(
    root: Path,
    *,
    config: dict[str, Any] | None = None,
    without: tuple[str, ...] = (),
    generation: dict[str, Any] | None = None,
    shards: int = 1,
    arrays: dict[str, npt.NDArray[Any]] | None = None,
) -> Path:
    """A Llama with config.json and weights, cut into shards when asked."""
    root.mkdir(parents=True, exist_ok=True)
    values = {key: value for key, value in {**CONFIG, **(config or {})}.items() if key not in without}
    (root / "config.json").write_text(json.dumps(values))
    if generation is not None:
        (root / "generation_config.json").write_text(json.dumps(generation))
    arrays = dict(llama_arrays()) if arrays is None else arrays
    if shards == 1:
        save_file(arrays, root / "model.safetensors")
        return root
    weight_map = {}
    for number in range(shards):
        shard = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        names = list(arrays)[number::shards]
        save_file({name: arrays[name] for name in names}, root / shard)
        weight_map |= dict.fromkeys(names, shard)
    (root / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return root


def files_of(root: Path) -> ModelFiles:
    """The directory as the local source would give it."""
    return ModelFiles(reference=str(root), source="local", root=str(root), weights=weight_files(root))
