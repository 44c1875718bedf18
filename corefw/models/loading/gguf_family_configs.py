"""What each family's configuration has beyond what is common to all: windows, soft caps, two rotary bases.

Sources: the exporters of llama.cpp (what is in the file) and its readers (what follows from the number of layers).
"""

from __future__ import annotations

from typing import Any

from corefw.models.loading.gguf_values import GGUFValues
from corefw.models.loading.hf_rope import LEAST

__all__ = ["as_read", "gemma2_config", "gemma3_config", "phi3_config"]

Config = dict[str, Any]

_GEMMA2_WINDOW = 4096  # of files that were written before the key existed
# Only the largest model of each generation scales by width over heads; files don't say so, its depth does.
_GEMMA2_27B_LAYERS = 46
_GEMMA3_27B_LAYERS = 62


def as_read(values: GGUFValues, config: Config) -> Config:  # noqa: ARG001
    """Nothing to add."""
    return config


def gemma2_config(values: GGUFValues, config: Config) -> Config:
    """Every second layer has a window; scores and logits are capped."""
    return {
        **config,
        "sliding_window": config["sliding_window"] or _GEMMA2_WINDOW,
        "layer_types": _layer_types(values, config["num_hidden_layers"], period=2),
        "query_pre_attn_scalar": _query_scalar(config, _GEMMA2_27B_LAYERS),
        "attn_logit_softcapping": values.optional_number("attn_logit_softcapping") or 50.0,
        "final_logit_softcapping": values.optional_number("final_logit_softcapping") or 30.0,
    }


def gemma3_config(values: GGUFValues, config: Config) -> Config:
    """Five of six layers have a window and a rotary base of their own."""
    num_layers = config["num_hidden_layers"]
    windowed = config["sliding_window"] is not None
    theta, scaling = config["rope_theta"], config["rope_scaling"] or {}
    rest = {key: value for key, value in config.items() if key not in ("rope_theta", "rope_scaling")}
    return {
        **rest,
        "layer_types": _layer_types(values, num_layers, period=6) if windowed else ["full_attention"] * num_layers,
        "query_pre_attn_scalar": _query_scalar(config, _GEMMA3_27B_LAYERS),
        "final_logit_softcapping": values.optional_number("final_logit_softcapping"),
        "rope_parameters": {
            "full_attention": {"rope_type": "default", **scaling, "rope_theta": theta},
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": values.optional_number("rope.freq_base_swa", low=LEAST) or 10000.0,
            },
        },
    }


def phi3_config(values: GGUFValues, config: Config) -> Config:
    """Long-context files say what the context was before it was extended."""
    original = values.optional_integer("rope.scaling.original_context_length")
    return {**config, "original_max_position_embeddings": original or config["max_position_embeddings"]}


def _query_scalar(config: Config, num_layers_of_largest: int) -> int:
    if config["num_hidden_layers"] == num_layers_of_largest:
        return int(config["hidden_size"] // config["num_attention_heads"])
    return int(config["head_dim"])


def _layer_types(values: GGUFValues, num_layers: int, *, period: int) -> list[str]:
    """The last of each ``period`` layers sees everything, unless the file has another period or a switch a layer."""
    key = "attention.sliding_window_pattern"
    switches = values.optional_switches(key)
    if switches is None:
        period = values.optional_integer(key) or period
        switches = [(index + 1) % period != 0 for index in range(num_layers)]
    elif len(switches) != num_layers:
        values.fail(key, f"has {len(switches)} entries for {num_layers} layers")
    return ["sliding_attention" if switch else "full_attention" for switch in switches]
