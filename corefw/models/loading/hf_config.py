"""From a Hugging Face model directory to ``ModelInfo``. Torch-free."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from corefw.config.model_info import ModelFiles, ModelInfo
from corefw.errors import ModelFormatError
from corefw.models.loading.config_reader import ConfigReader
from corefw.models.loading.hf_generation import sampling_defaults
from corefw.models.loading.hf_rope import LEAST, MOST, normalise_rope
from corefw.models.loading.model_directory import INDEX_NAME, read_index
from corefw.models.loading.safetensors_header import StoredTensor, read_safetensors_header

__all__ = ["check_sizes", "read_hf_info"]

_HEAD = "lm_head.weight"
# corefw's own architectures → the family whose defaults theirs are.
_BUILT_IN = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "Phi3ForCausalLM": "phi3",
}
_ROPE_BY_LAYER = "Gemma3ForCausalLM"
_MAX_WIDTH = 2**20
_MAX_HEADS = 2**16
_MAX_POSITION = 2**31
_REQUIRED = {
    "hidden_size": _MAX_WIDTH,
    "num_hidden_layers": 4096,
    "num_attention_heads": _MAX_HEADS,
    "vocab_size": 2**24,
    "max_position_embeddings": _MAX_POSITION,
}
_OPTIONAL = {
    "intermediate_size": _MAX_WIDTH,
    "num_key_value_heads": _MAX_HEADS,
    "head_dim": _MAX_HEADS,
    "sliding_window": _MAX_POSITION,
}
# What else configurations of other architectures call these sizes.
_OTHER_NAMES = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len", "max_sequence_length"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
}
# What only corefw's own architectures are known to mean by it.
_BUILT_IN_NUMBERS = (
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "rope_local_base_freq",
)
_BUILT_IN_SIZES = {"original_max_position_embeddings": 1, "sliding_window_pattern": 1, "max_window_layers": 0}
_FLAGS = ("attention_bias", "mlp_bias", "tie_word_embeddings", "use_sliding_window")
_ATTENTION_KINDS = frozenset({"full_attention", "sliding_attention"})
# What configurations may say; models of plugins may have such layers.
_LAYER_KINDS = _ATTENTION_KINDS | {
    "attention",
    "chunked_attention",
    "compressed_sparse_attention",
    "conv",
    "dense",
    "heavily_compressed_attention",
    "hybrid",
    "linear_attention",
    "mamba",
    "moe",
    "sparse",
}
_QUANTISED = ("quantization_config", "compression_config")
_FLOAT_DTYPES = frozenset({"float64", "float32", "float16", "bfloat16"})
_DECLARED_DTYPES = {name: name for name in _FLOAT_DTYPES} | {"double": "float64", "float": "float32", "half": "float16"}
# What old checkpoints store beside the weights under names that end like theirs: causal masks.
_MASKS = (".attn.bias", ".masked_bias")
# What these families' configuration classes assume when an old config.json leaves it out.
_LLAMA_DEFAULTS = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": False, "mlp_bias": False}
_QWEN2_DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_GEMMA3_DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attention_bias": False,
    "tie_word_embeddings": True,
}
_FAMILY_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA_DEFAULTS,
    "mistral": _LLAMA_DEFAULTS,
    "qwen2": _QWEN2_DEFAULTS,
    "qwen3": {**_QWEN2_DEFAULTS, "head_dim": 128, "attention_bias": False},
    "gemma2": {
        **_GEMMA3_DEFAULTS,
        "rope_theta": 10000.0,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3_text": _GEMMA3_DEFAULTS,
    "phi3": {"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "original_max_position_embeddings": 4096},
}


def read_hf_info(files: ModelFiles, loader: str) -> ModelInfo:
    """Everything but the weights.

    Args:
        files: a directory's root and its ``.safetensors`` files.
        loader: name of the model loader.

    Raises:
        ModelFormatError: a missing or damaged file, a missing or unusable key, a tensor that isn't where the index
            says.
    """
    root = Path(files.root)
    reader = ConfigReader.of_file(root / "config.json")
    architecture = _architecture(reader)
    _refuse_quantised(reader)
    tensors = _read_headers(root, files.weights)
    config = _normalise(reader, architecture, tensors)
    generation = _generation_config(root)
    eos_ids = generation.token_ids("eos_token_id") or reader.token_ids("eos_token_id")
    bos_ids = reader.token_ids("bos_token_id") or generation.token_ids("bos_token_id")
    return ModelInfo(
        files=files,
        loader=loader,
        architecture=architecture,
        hf_config=config,
        checkpoint_dtype=_checkpoint_dtype(reader, tensors),
        max_position=config["max_position_embeddings"] or 0,
        vocab_size=config["vocab_size"] or 0,
        eos_ids=eos_ids,
        bos_id=bos_ids[0] if bos_ids else None,
        generation_config=sampling_defaults(generation),
    )


def check_sizes(info: ModelInfo) -> None:
    """Refuse a model whose sizes aren't all known once it is chosen what computes it.

    Raises:
        ModelFormatError: names the missing keys of its configuration.
    """
    keys = (*_REQUIRED, "head_dim")
    missing = [key for key in keys if key in info.hf_config and info.hf_config[key] is None]
    if missing:
        raise ModelFormatError(
            f"{Path(info.files.root) / 'config.json'}: doesn't state {', '.join(missing)}, which the model class of "
            f"{info.architecture[:80]} needs; fetch the model again or correct the file"
        )


def _generation_config(root: Path) -> ConfigReader:
    """Without the file, an empty one."""
    path = root / "generation_config.json"
    return ConfigReader.of_file(path) if path.exists() or path.is_symlink() else ConfigReader(path, {})


def _architecture(reader: ConfigReader) -> str:
    names = reader.values.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str) or not names[0].isidentifier():
        reader.fail("architectures", "must be a list with the name of the model's class, such as LlamaForCausalLM")
    if len(names[0]) > 256:
        reader.fail("architectures", f"has a name of {len(names[0])} characters, expected at most 256")
    return names[0]


def _refuse_quantised(reader: ConfigReader) -> None:
    for key in _QUANTISED:
        if reader.has(key):
            settings = reader.values[key]
            method = settings.get("quant_method") if isinstance(settings, dict) else None
            by = f" by {method[:40]!r}" if isinstance(method, str) else ""
            reader.fail(
                key,
                f"says that the weights are quantised{by}, which .safetensors models can't be here; use the "
                "model as it was before quantisation (--quantization rounds it while it is loaded), or a .gguf version",
            )


def _read_headers(root: Path, weights: tuple[str, ...]) -> dict[str, StoredTensor]:
    by_file = {Path(path).name: read_safetensors_header(Path(path)) for path in weights}
    for name, shard in (read_index(root) or {}).items():
        if name not in by_file.get(shard, {}):
            raise ModelFormatError(
                f"{root / shard}: tensor {name[:80]!r} is missing, though {INDEX_NAME} places it there; "
                "fetch the whole model directory again"
            )
    tensors: dict[str, StoredTensor] = {}
    for shard, header in by_file.items():
        for tensor in header.values():
            _check_stored_dtype(root / shard, tensor)
        tensors.update(header)
    return tensors


def _check_stored_dtype(path: Path, tensor: StoredTensor) -> None:
    """Whole numbers and float8 need scales; taken as they are, they would make a model that talks nonsense."""
    is_weight = tensor.name.endswith(("weight", "bias")) and not tensor.name.endswith(_MASKS)
    if is_weight and tensor.dtype not in _FLOAT_DTYPES:
        raise ModelFormatError(
            f"{path}: tensor {tensor.name[:80]!r} has the dtype {tensor.dtype}, expected one of "
            f"{', '.join(sorted(_FLOAT_DTYPES))}; quantised weights are supported in .gguf files only"
        )


def _normalise(reader: ConfigReader, architecture: str, tensors: dict[str, StoredTensor]) -> dict[str, Any]:
    """A copy in which what layers ask for is always there, whichever transformers version wrote the file."""
    built_in = architecture in _BUILT_IN
    family = _BUILT_IN.get(architecture) or str(reader.values.get("model_type"))[:40]
    config = {**_FAMILY_DEFAULTS.get(family, {}), **reader.values}
    if not built_in:
        _rename_sizes(config)
    reader = ConfigReader(reader.path, dict(config))  # what is checked has the defaults filled in
    _check_sizes(reader, built_in=built_in)
    _check_numbers_and_flags(reader, built_in=built_in)
    if built_in or (reader.has("num_attention_heads") and reader.has("hidden_size")):
        _derive_heads(reader, config, built_in=built_in)
    config.setdefault("sliding_window", None)
    if reader.has("num_hidden_layers"):
        _check_layer_types(reader, config["num_hidden_layers"], _ATTENTION_KINDS if built_in else _LAYER_KINDS)
    normalise_rope(reader, config, built_in=built_in, by_layer=not built_in or architecture == _ROPE_BY_LAYER)
    if architecture.endswith("ForCausalLM"):
        _normalise_head(reader, config, tensors, built_in=built_in)
    return config


def _rename_sizes(config: dict[str, Any]) -> None:
    """Sizes under their usual names; those that aren't stated are None, until it is known what computes the model."""
    for key, others in _OTHER_NAMES.items():
        if config.get(key) is None:
            config[key] = next((config[name] for name in others if config.get(name) is not None), None)
    for key in _REQUIRED:
        config.setdefault(key, None)


def _check_sizes(reader: ConfigReader, *, built_in: bool) -> None:
    for key, high in _REQUIRED.items():
        if built_in or reader.has(key):
            reader.whole(key, high)
    for key, high in _OPTIONAL.items():
        is_inner = key == "intermediate_size"  # built-in architectures need it, others may have one a layer
        if built_in if is_inner else reader.has(key):
            reader.whole(key, high, low=int(built_in or key != "sliding_window"))  # some say 0 for none


def _check_numbers_and_flags(reader: ConfigReader, *, built_in: bool) -> None:
    if "rms_norm_eps" in reader.values:
        reader.number("rms_norm_eps")
    if "rope_theta" in reader.values:
        reader.number("rope_theta", low=LEAST, high=MOST, low_open=False)
    if reader.has("partial_rotary_factor"):
        reader.number("partial_rotary_factor", high=1.0)
    for key in filter(reader.has, _BUILT_IN_NUMBERS if built_in else ()):
        reader.number(key, high=MOST)
    for key in filter(reader.has, _BUILT_IN_SIZES if built_in else ()):
        reader.whole(key, _MAX_POSITION, low=_BUILT_IN_SIZES[key])
    for key in _FLAGS:
        if key in reader.values:
            reader.flag(key)


def _derive_heads(reader: ConfigReader, config: dict[str, Any], *, built_in: bool) -> None:
    heads = config["num_attention_heads"]
    if config.get("num_key_value_heads") is None:
        config["num_key_value_heads"] = heads
    if heads % config["num_key_value_heads"]:
        reader.refuse("num_key_value_heads", f"a divisor of num_attention_heads, which is {heads}")
    if config.get("head_dim") is None:
        if config["hidden_size"] % heads and not built_in:
            config["head_dim"] = None  # it may have another name
            return
        if config["hidden_size"] % heads:
            reader.fail(
                "num_attention_heads",
                f"is {heads}, which doesn't divide hidden_size ({config['hidden_size']}), and there is no head_dim",
            )
        config["head_dim"] = config["hidden_size"] // heads


def _check_layer_types(reader: ConfigReader, num_layers: int, known: frozenset[str]) -> None:
    kinds = reader.values.get("layer_types")
    if kinds is None:
        return
    accepted = f"a list of {num_layers} (num_hidden_layers) words, each one of {', '.join(sorted(known))}"
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        reader.refuse("layer_types", accepted)
    for index, kind in enumerate(kinds):
        if not isinstance(kind, str) or kind not in known:
            shown = repr(kind[:40]) if isinstance(kind, str) else type(kind).__name__
            reader.fail(f"layer_types[{index}]", f"is {shown}, expected {accepted}")
    if "sliding_attention" in kinds and not reader.has("sliding_window"):
        reader.refuse("sliding_window", "a number of tokens, as layer_types names sliding_attention")


def _normalise_head(
    reader: ConfigReader, config: dict[str, Any], tensors: dict[str, StoredTensor], *, built_in: bool
) -> None:
    tied = config.setdefault("tie_word_embeddings", _HEAD not in tensors)
    if built_in and not tied and _HEAD not in tensors:
        raise ModelFormatError(
            f"{reader.path.parent}: tensor {_HEAD!r} is missing, though tie_word_embeddings is false in config.json; "
            "fetch the whole model directory again"
        )


def _checkpoint_dtype(reader: ConfigReader, tensors: dict[str, StoredTensor]) -> str:
    declared = [_declared_dtype(reader, key) for key in ("dtype", "torch_dtype")]
    named = next((name for name in declared if name is not None), None)
    if named is not None:
        return named
    elements: Counter[str] = Counter()
    for tensor in tensors.values():
        if tensor.dtype in _FLOAT_DTYPES:
            elements[tensor.dtype] += tensor.num_elements
    return elements.most_common(1)[0][0] if elements else "float32"


def _declared_dtype(reader: ConfigReader, key: str) -> str | None:
    """None where the key says nothing or ``auto``."""
    value = reader.values.get(key)
    if value in (None, "auto"):
        return None
    name = _DECLARED_DTYPES.get(value.removeprefix("torch.")) if isinstance(value, str) else None
    if name is None:
        reader.refuse(key, f"auto or one of {', '.join(sorted(_FLOAT_DTYPES))}")
    return name
