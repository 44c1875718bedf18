"""From the header of a GGUF file to ``ModelInfo`` in Hugging Face terms. Torch-free."""

from __future__ import annotations

from collections import Counter
from typing import Any

from corefw.config.model_info import ModelFiles, ModelInfo
from corefw.errors import ModelFormatError
from corefw.models.loading.gguf_architectures import ARCHITECTURES, GGUFArchitecture
from corefw.models.loading.gguf_file import GGUFFile
from corefw.models.loading.gguf_rope import rope_config
from corefw.models.loading.gguf_tensors import check_complete, map_tensors
from corefw.models.loading.gguf_values import GGUFValues
from corefw.models.loading.gguf_vocabulary import begin_token, end_tokens

__all__ = ["architecture_of", "read_gguf_info"]

_EMBEDDING = "token_embd.weight"
_DTYPE_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Hugging Face key → key under "general.sampling." of the file
_SAMPLING_KEYS = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


def read_gguf_info(file: GGUFFile, files: ModelFiles, loader: str) -> ModelInfo:
    """Everything but the weights.

    Args:
        file: the opened file.
        files: where it came from.
        loader: name of the model loader.

    Raises:
        ModelFormatError: an unknown architecture, a missing or unusable key, a missing or unknown tensor.
    """
    architecture = architecture_of(file)
    config = _hf_config(file, architecture)
    check_complete(file, architecture, config["num_hidden_layers"])
    for _ in map_tensors(file, architecture):
        pass  # refuses unknown tensors now, not in the middle of loading
    eos_ids = end_tokens(file, config["vocab_size"])
    bos_id = begin_token(file, config["vocab_size"])
    config |= {"eos_token_id": list(eos_ids), "bos_token_id": bos_id}
    return ModelInfo(
        files=files,
        loader=loader,
        architecture=architecture.hf_class,
        hf_config=config,
        checkpoint_dtype=_checkpoint_dtype(file),
        max_position=config["max_position_embeddings"],
        vocab_size=config["vocab_size"],
        eos_ids=eos_ids,
        bos_id=bos_id,
        generation_config=_sampling_defaults(file),
        quantization="gguf" if (types := _block_types(file)) else None,
        block_types=types,
    )


def architecture_of(file: GGUFFile) -> GGUFArchitecture:
    """The family's table.

    Raises:
        ModelFormatError: none is named, or it isn't known.
    """
    general = GGUFValues(file, "general.")
    name = general.optional_text("architecture")
    if name is None:
        general.fail("architecture", "is missing")
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelFormatError(f"{file.path}: the architecture {name[:40]!r} can't be read from GGUF; known: {known}")
    return architecture


def _hf_config(file: GGUFFile, architecture: GGUFArchitecture) -> dict[str, Any]:
    values = GGUFValues(file, f"{architecture.name}.")
    for key in architecture.refused:
        if file.metadata.get(f"{architecture.name}.{key}") not in (None, 0, 1):
            values.fail(key, "asks for arithmetic that isn't supported")
    hidden_size = values.integer("embedding_length")
    num_heads = values.integer("attention.head_count")
    head_dim = _head_dim(values, hidden_size, num_heads)
    config = {
        "architectures": [architecture.hf_class],
        "model_type": architecture.model_type,
        **architecture.constants,
        "hidden_size": hidden_size,
        "intermediate_size": values.integer("feed_forward_length"),
        "num_hidden_layers": values.integer("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": _kv_heads(values, num_heads),
        "head_dim": head_dim,
        "rms_norm_eps": values.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": values.integer("context_length"),
        "vocab_size": _vocab_size(file, hidden_size),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "sliding_window": values.optional_integer("attention.sliding_window", low=0) or None,
        **rope_config(file, values, head_dim),
    }
    return architecture.finish(values, config)


def _head_dim(values: GGUFValues, hidden_size: int, num_heads: int) -> int:
    head_dim = values.optional_integer("attention.key_length")
    if head_dim is None:
        if hidden_size % num_heads:
            values.fail("attention.head_count", f"is {num_heads}, which doesn't divide the hidden size {hidden_size}")
        head_dim = hidden_size // num_heads
    value_dim = values.optional_integer("attention.value_length") or head_dim
    if value_dim != head_dim:
        values.fail("attention.value_length", f"is {value_dim}, only the key's size {head_dim} is supported")
    return head_dim


def _kv_heads(values: GGUFValues, num_heads: int) -> int:
    num_kv_heads = values.optional_integer("attention.head_count_kv") or num_heads
    if num_heads % num_kv_heads:
        values.fail("attention.head_count_kv", f"is {num_kv_heads}, which doesn't divide the {num_heads} query heads")
    return num_kv_heads


def _vocab_size(file: GGUFFile, hidden_size: int) -> int:
    info = file.tensors.get(_EMBEDDING)
    if info is None or len(info.shape) != 2 or info.shape[1] != hidden_size:
        shape = "missing" if info is None else f"of shape {info.shape}"
        raise ModelFormatError(
            f"{file.path}: tensor {_EMBEDDING!r} is {shape}, expected (vocabulary, {hidden_size}); fetch the file again"
        )
    return info.shape[0]


def _checkpoint_dtype(file: GGUFFile) -> str:
    elements: Counter[str] = Counter()
    for info in file.tensors.values():
        if info.type.is_block:
            return "block"
        elements[info.type.name] += info.num_elements
    return _DTYPE_NAMES[elements.most_common(1)[0][0]]


def _block_types(file: GGUFFile) -> tuple[str, ...]:
    matrices = [info for info in file.tensors.values() if info.type.is_block and len(info.shape) == 2]
    return tuple(name for name, _ in Counter(info.type.name for info in matrices).most_common())


def _sampling_defaults(file: GGUFFile) -> dict[str, Any]:
    found = {name: file.metadata.get(f"general.sampling.{key}") for name, key in _SAMPLING_KEYS.items()}
    return {name: value for name, value in found.items() if isinstance(value, int | float)}
