"""From a Hugging Face model directory to ``ModelInfo``. Torch-free."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from corefw.config.model_info import ModelFiles, ModelInfo
from corefw.errors import ModelFormatError
from corefw.models.loading.json_file import read_json_object
from corefw.models.loading.model_directory import INDEX_NAME, read_index
from corefw.models.loading.safetensors_header import StoredTensor, read_safetensors_header

__all__ = ["read_hf_info"]

_HEAD = "lm_head.weight"
_REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
_SAMPLING_KEYS = (
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "max_new_tokens",
)
_FLOAT_DTYPES = frozenset({"float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"})
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
    reader = _ConfigReader(root / "config.json")
    tensors = _read_headers(root, files.weights)
    config = _normalise(reader, tensors)
    generation_path = root / "generation_config.json"
    generation = _ConfigReader(generation_path) if generation_path.is_file() else None
    eos_ids = (generation.token_ids("eos_token_id") if generation else ()) or reader.token_ids("eos_token_id")
    bos_ids = reader.token_ids("bos_token_id") or (generation.token_ids("bos_token_id") if generation else ())
    return ModelInfo(
        files=files,
        loader=loader,
        architecture=reader.architecture(),
        hf_config=config,
        checkpoint_dtype=_checkpoint_dtype(config, tensors),
        max_position=config["max_position_embeddings"],
        vocab_size=config["vocab_size"],
        eos_ids=eos_ids,
        bos_id=bos_ids[0] if bos_ids else None,
        generation_config=_sampling_defaults(generation),
    )


class _ConfigReader:
    """A JSON configuration, and errors that name its file and key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values = read_json_object(path)

    def fail(self, key: str, what: str) -> NoReturn:
        raise ModelFormatError(f"{self.path}: key {key!r} {what}; fetch the model again or correct the file")

    def architecture(self) -> str:
        names = self.values.get("architectures")
        if not isinstance(names, list) or not names or not isinstance(names[0], str) or not names[0]:
            self.fail("architectures", "must be a list with the name of the model's class, such as LlamaForCausalLM")
        return names[0]

    def size(self, key: str) -> int:
        value = self.values.get(key)
        if value is None:
            self.fail(key, "is missing")
        if type(value) is not int or value < 1:
            self.fail(key, f"is {str(value)[:40]!r}, expected a whole number from 1")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        value = self.values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for token_id in ids:
            if type(token_id) is not int or token_id < 0:
                self.fail(key, f"is {str(value)[:40]!r}, expected a token id or a list of them")
        return tuple(dict.fromkeys(ids))


def _read_headers(root: Path, weights: tuple[str, ...]) -> dict[str, StoredTensor]:
    by_file = {Path(path).name: read_safetensors_header(Path(path)) for path in weights}
    for name, shard in (read_index(root) or {}).items():
        if name not in by_file.get(shard, {}):
            raise ModelFormatError(
                f"{root / shard}: tensor {name[:80]!r} is missing, though {INDEX_NAME} places it there; "
                "fetch the whole model directory again"
            )
    tensors: dict[str, StoredTensor] = {}
    for header in by_file.values():
        tensors.update(header)
    return tensors


def _normalise(reader: _ConfigReader, tensors: dict[str, StoredTensor]) -> dict[str, Any]:
    """A copy in which what layers ask for is always there, whichever transformers version wrote the file."""
    config = dict(reader.values)
    for key in _REQUIRED:
        config[key] = reader.size(key)
    for key, default in _FAMILY_DEFAULTS.get(str(config.get("model_type")), {}).items():
        config.setdefault(key, default)
    if config.get("num_key_value_heads") is None:
        config["num_key_value_heads"] = config["num_attention_heads"]
    if config.get("head_dim") is None:
        if config["hidden_size"] % config["num_attention_heads"]:
            reader.fail("num_attention_heads", "doesn't divide hidden_size, and there is no head_dim")
        config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    config.setdefault("sliding_window", None)
    _normalise_rope(config)
    _normalise_head(reader, config, tensors)
    return config


def _normalise_rope(config: dict[str, Any]) -> None:
    """``rope_theta`` and ``rope_scaling`` also where only ``rope_parameters`` (transformers 5) is written."""
    parameters = config.get("rope_parameters")
    if isinstance(parameters, dict) and not any(isinstance(value, dict) for value in parameters.values()):
        config["rope_theta"] = parameters.get("rope_theta", config.get("rope_theta", 10000.0))
        scaling = {key: value for key, value in parameters.items() if key != "rope_theta"}
        if "partial_rotary_factor" in scaling:
            config["partial_rotary_factor"] = scaling.pop("partial_rotary_factor")
        config["rope_scaling"] = scaling
    config["rope_scaling"] = _named_scaling(config.get("rope_scaling"))


def _named_scaling(scaling: Any) -> dict[str, Any] | None:
    """The kind under ``rope_type``, whichever of its two names was used; None for no scaling."""
    if not isinstance(scaling, dict):
        return None
    named = {key: value for key, value in scaling.items() if key != "type"}
    named.setdefault("rope_type", scaling.get("type") or "default")
    return None if named["rope_type"] == "default" else named


def _normalise_head(reader: _ConfigReader, config: dict[str, Any], tensors: dict[str, StoredTensor]) -> None:
    if not reader.architecture().endswith("ForCausalLM"):
        return
    tied = config.setdefault("tie_word_embeddings", _HEAD not in tensors)
    if not tied and _HEAD not in tensors:
        raise ModelFormatError(
            f"{reader.path.parent}: tensor {_HEAD!r} is missing, though tie_word_embeddings is false in config.json; "
            "fetch the whole model directory again"
        )


def _checkpoint_dtype(config: dict[str, Any], tensors: dict[str, StoredTensor]) -> str:
    declared = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    if declared in _FLOAT_DTYPES:
        return declared
    elements: Counter[str] = Counter()
    for tensor in tensors.values():
        if tensor.dtype in _FLOAT_DTYPES:
            elements[tensor.dtype] += tensor.num_elements
    return elements.most_common(1)[0][0] if elements else "float32"


def _sampling_defaults(generation: _ConfigReader | None) -> dict[str, Any]:
    if generation is None:
        return {}
    found = {key: generation.values.get(key) for key in _SAMPLING_KEYS}
    return {key: value for key, value in found.items() if isinstance(value, bool | int | float)}
