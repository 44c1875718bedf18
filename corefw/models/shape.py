"""Sizes that configurations state in more than one way. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corefw.errors import ModelFormatError

__all__ = ["has_sliding_window", "head_size", "num_kv_heads", "sliding_window"]


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


def sliding_window(hf_config: Mapping[str, Any], index: int) -> int | None:
    """The window of a layer: ``sliding_window``, where ``layer_types`` doesn't say that the layer sees everything."""
    window = hf_config.get("sliding_window")
    kinds = hf_config.get("layer_types")
    if not window or (kinds and kinds[index] != "sliding_attention"):
        return None
    return int(window)


def has_sliding_window(hf_config: Mapping[str, Any]) -> bool:
    """Whether any layer has a window."""
    return any(sliding_window(hf_config, index) is not None for index in range(int(hf_config["num_hidden_layers"])))
