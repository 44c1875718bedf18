"""Writes small GGUF files with gguf-py, the reference implementation."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

HIDDEN, FFN, HEADS, KV_HEADS, LAYERS, VOCAB = 64, 96, 4, 2, 2, 40
HEAD_DIM = HIDDEN // HEADS

Arrays = dict[str, npt.NDArray[np.float32]]

METADATA: dict[str, Any] = {
    "llama.block_count": LAYERS,
    "llama.context_length": 256,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": FFN,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.tokens": [f"t{n}" for n in range(VOCAB)],
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.bos_token_id": 1,
}


def llama_arrays(*, tied: bool = False, biases: bool = False, seed: int = 0) -> Arrays:
    """A random Llama by its Hugging Face names."""
    rng = np.random.default_rng(seed)

    def random(*shape: int) -> npt.NDArray[np.float32]:
        return rng.standard_normal(shape, dtype=np.float32)

    arrays = {"model.embed_tokens.weight": random(VOCAB, HIDDEN), "model.norm.weight": random(HIDDEN)}
    if not tied:
        arrays["lm_head.weight"] = random(VOCAB, HIDDEN)
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (FFN, HIDDEN),
        "mlp.up_proj": (FFN, HIDDEN),
        "mlp.down_proj": (HIDDEN, FFN),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            arrays[f"{prefix}{norm}.weight"] = random(HIDDEN)
        for name, shape in shapes.items():
            arrays[f"{prefix}{name}.weight"] = random(*shape)
            if biases:
                arrays[f"{prefix}{name}.bias"] = random(shape[0])
    return arrays


def exporter_name(name: str) -> str:
    """Name that llama.cpp's exporter gives to a tensor of a Llama."""
    for old, new in (
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers.", "blk."),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
    ):
        name = name.replace(old, new)
    return name


def exporter_rows(name: str, array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Row order that llama.cpp's exporter gives to queries and keys."""
    heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else None
    if heads is None:
        return array
    split = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(array.shape))


def write_llama(
    path: Path,
    arrays: Arrays,
    *,
    types: dict[str, gguf.GGMLQuantizationType] | None = None,
    metadata: dict[str, Any] | None = None,
    without: tuple[str, ...] = (),
    extra: Arrays | None = None,
    architecture: str = "llama",
) -> Path:
    """Export ``arrays`` as a Llama file.

    Args:
        path: where.
        arrays: by Hugging Face name.
        types: element type by Hugging Face name; float32 where absent.
        metadata: changes ``METADATA``.
        without: metadata keys and tensor names (as in the file) to leave out.
        extra: further tensors, by their names in the file.
        architecture: value of ``general.architecture``.
    """
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**METADATA, **(metadata or {})}.items():
        if key not in without:
            add_value(writer, key, value)
    for name, array in arrays.items():
        if exporter_name(name) not in without:
            add_tensor(writer, exporter_name(name), exporter_rows(name, array), (types or {}).get(name))
    for name, array in (extra or {}).items():
        add_tensor(writer, name, array, None)
    finish(writer)
    return path


def write_split(
    stem: Path, arrays: Arrays, *, counts: tuple[int, ...], changes: dict[int, dict[str, int]] | None = None
) -> tuple[Path, ...]:
    """Export ``arrays`` as a Llama in several files, as llama-gguf-split would.

    Args:
        stem: path without number and ending.
        arrays: by Hugging Face name.
        counts: tensors in each part.
        changes: by part, to what it says of the split.
    """
    left = iter(arrays.items())
    paths = []
    for index, count in enumerate(counts):
        path = stem.with_name(f"{stem.name}-{index + 1:05d}-of-{len(counts):05d}.gguf")
        writer = gguf.GGUFWriter(path, "llama")
        for key, value in METADATA.items() if index == 0 else ():
            add_value(writer, key, value)
        said = {"split.no": index, "split.count": len(counts), "split.tensors.count": len(arrays)}
        for key, number in {**said, **(changes or {}).get(index, {})}.items():
            writer.add_uint16(key, number)
        for name, array in itertools.islice(left, count):
            writer.add_tensor(exporter_name(name), exporter_rows(name, array))
        finish(writer)
        paths.append(path)
    return tuple(paths)


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add a value under the type that exporters use for it."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def add_tensor(
    writer: gguf.GGUFWriter, name: str, array: npt.NDArray[Any], kind: gguf.GGMLQuantizationType | None
) -> None:
    """Add a tensor, quantised when a type is given."""
    if kind is None:
        writer.add_tensor(name, array)
    else:
        writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)


def finish(writer: gguf.GGUFWriter) -> None:
    """Write everything."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
