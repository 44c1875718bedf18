"""Sizes and layer kinds that configurations state in more than one way. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corefw.errors import ModelFormatError

__all__ = ["has_sliding_window", "head_size", "layer_kind", "num_kv_heads", "sliding_window"]

_FULL, _SLIDING = "full_attention", "sliding_attention"
_WINDOW_ON_REQUEST = ("qwen2", "qwen3")  # their window counts only where ``use_sliding_window`` is set
_PATTERNS = {"gemma2": 2, "gemma3_text": 6}  # where the configuration leaves ``sliding_window_pattern`` out


def head_size(hf_config: Mapping[str, Any]) -> int:
    """``head_dim``, else width over heads."""
    stated = hf_config.get("head_dim")
    return int(stated or int(hf_config["hidden_size"]) // int(hf_config["num_attention_heads"]))


def num_kv_heads(hf_config: Mapping[str, Any]) -> int:
    """``num_key_value_heads``, else as many as query heads.

    Raises:
        ModelFormatError: they don't divide the query heads.
    """
    heads = int(hf_config["num_attention_heads"])
    kv_heads = int(hf_config.get("num_key_value_heads") or heads)
    if heads % kv_heads:
        raise ModelFormatError(f"{heads} query heads can't share {kv_heads} KV heads evenly")
    return kv_heads


def layer_kind(hf_config: Mapping[str, Any], index: int) -> str:
    """What ``layer_types`` says, else ``sliding_attention`` or ``full_attention`` by the family's rule.

    Raises:
        ModelFormatError: ``layer_types`` is too short.
    """
    kinds = hf_config.get("layer_types")
    if kinds:
        if index >= len(kinds):
            raise ModelFormatError(f"layer_types has {len(kinds)} entries, but there is a layer {index}")
        return str(kinds[index])
    pattern = hf_config.get("sliding_window_pattern") or _PATTERNS.get(str(hf_config.get("model_type")))
    if pattern:
        return _SLIDING if (index + 1) % int(pattern) else _FULL
    if _window(hf_config) is None or index < _full_layers(hf_config):
        return _FULL
    return _SLIDING


def sliding_window(hf_config: Mapping[str, Any], index: int) -> int | None:
    """The window of a layer, None where it sees everything."""
    return _window(hf_config) if layer_kind(hf_config, index) == _SLIDING else None


def has_sliding_window(hf_config: Mapping[str, Any]) -> bool:
    """Whether any layer has a window."""
    return any(sliding_window(hf_config, index) is not None for index in range(int(hf_config["num_hidden_layers"])))


def _window(hf_config: Mapping[str, Any]) -> int | None:
    used = hf_config.get("use_sliding_window", hf_config.get("model_type") not in _WINDOW_ON_REQUEST)
    window = hf_config.get("sliding_window")
    return int(window) if window and used else None


def _full_layers(hf_config: Mapping[str, Any]) -> int:
    """How many first layers of a family with ``max_window_layers`` see everything."""
    if hf_config.get("model_type") not in _WINDOW_ON_REQUEST:
        return 0
    return int(hf_config.get("max_window_layers", 28))
