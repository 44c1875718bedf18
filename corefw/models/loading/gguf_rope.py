"""Rotary embedding of a GGUF file in Hugging Face terms."""

from __future__ import annotations

from typing import Any

from corefw.errors import ModelFormatError
from corefw.models.loading.gguf_blocks import dequantise
from corefw.models.loading.gguf_file import GGUFFile
from corefw.models.loading.gguf_values import GGUFValues, shortest_float
from corefw.models.loading.hf_rope import LEAST, MOST

__all__ = ["rope_config"]

_FACTORS = "rope_freqs.weight"
# Hugging Face key → tensor of a model whose context was extended by "longrope"
_LONG_FACTORS = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}
# Hugging Face key → key under "rope.scaling." of the file
_YARN_KEYS = {
    "attention_factor": "attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


def rope_config(file: GGUFFile, values: GGUFValues, head_dim: int) -> dict[str, Any]:
    """``rope_theta``, ``rope_scaling``, and where the file has them ``rope_freq_factors``, ``partial_rotary_factor``.

    ``rope_freq_factors`` is a list of ``rotary dimensions / 2`` numbers; the inverse frequencies are divided by them.
    The exporter works them out from a ``llama3`` scaling, whose own parameters are not in the file.
    """
    config: dict[str, Any] = {
        "rope_theta": values.optional_number("rope.freq_base", low=LEAST) or 10000.0,
        "rope_scaling": _scaling(values),
    }
    rotary_dim = values.optional_integer("rope.dimension_count") or head_dim
    if rotary_dim > head_dim or rotary_dim % 2:
        values.fail("rope.dimension_count", f"is {rotary_dim}, expected an even number up to the head size {head_dim}")
    if rotary_dim != head_dim:
        config["partial_rotary_factor"] = rotary_dim / head_dim
    if _FACTORS in file.tensors:
        config["rope_freq_factors"] = _frequency_factors(file, _FACTORS, rotary_dim // 2)
    if any(name in file.tensors for name in _LONG_FACTORS.values()):
        config["rope_scaling"] = _long_scaling(file, values, rotary_dim // 2)
    return config


def _long_scaling(file: GGUFFile, values: GGUFValues, count: int) -> dict[str, Any]:
    """Two tables, for texts up to the original context and for longer ones; the exporter names no kind for them."""
    original = values.integer("rope.scaling.original_context_length")
    scaling: dict[str, Any] = {
        "rope_type": "longrope",
        **{key: _frequency_factors(file, name, count) for key, name in _LONG_FACTORS.items()},
        "factor": values.integer("context_length") / original,
        "original_max_position_embeddings": original,
    }
    attention_factor = values.optional_number("rope.scaling.attn_factor", low=LEAST)
    if attention_factor is not None:
        scaling["attention_factor"] = attention_factor
    return scaling


def _scaling(values: GGUFValues) -> dict[str, Any] | None:
    kind = values.optional_text("rope.scaling.type") or "none"
    factor = values.optional_number("rope.scaling.factor", low=LEAST)
    legacy = values.optional_number("rope.scale_linear", low=LEAST)
    if kind == "none":
        return {"rope_type": "linear", "factor": legacy} if legacy not in (None, 1.0) else None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor or legacy or 1.0}
    if kind != "yarn":
        values.fail("rope.scaling.type", f"is {kind[:40]!r}; none, linear and yarn can be read")
    scaling: dict[str, Any] = {"rope_type": "yarn", "factor": factor or 1.0}
    original = values.optional_integer("rope.scaling.original_context_length")
    if original is not None:
        scaling["original_max_position_embeddings"] = original
    for name, key in _YARN_KEYS.items():
        value = values.optional_number(f"rope.scaling.{key}", low=LEAST)
        if value is not None:
            scaling[name] = value
    return scaling


def _frequency_factors(file: GGUFFile, name: str, count: int) -> list[float]:
    info = file.tensors.get(name)
    if info is None:
        raise ModelFormatError(f"{file.path}: tensor {name!r} is missing; convert the model again")
    factors = dequantise(file.raw(name), info.type)
    if len(factors) != count or not ((factors >= LEAST) & (factors <= MOST)).all():
        raise ModelFormatError(
            f"{file.path}: tensor {name!r} must hold {count} positive numbers up to {MOST:g}, it has the shape "
            f"{info.shape}; convert the model again"
        )
    return [shortest_float(factor) for factor in factors]
