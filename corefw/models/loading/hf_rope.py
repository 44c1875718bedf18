"""The rotary embedding in a Hugging Face configuration: checked, and in one form. Torch-free."""

from __future__ import annotations

from typing import Any

from corefw.models.loading.config_reader import ConfigReader

__all__ = ["BUILT_IN_KINDS", "normalise_rope"]

BUILT_IN_KINDS = frozenset({"default", "linear", "llama3"})
# What configurations may say; models of plugins may know how to compute it.
_KINDS = BUILT_IN_KINDS | {"dynamic", "longrope", "mrope", "proportional", "su", "yarn"}
_POSITIVE = (
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
)
_NEEDED = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
_MAX_POSITION = 2**31


def normalise_rope(reader: ConfigReader, config: dict[str, Any], *, built_in: bool) -> None:
    """``rope_theta``, ``rope_scaling`` and ``partial_rotary_factor`` also where only ``rope_parameters`` is written.

    Args:
        reader: of the file.
        config: the copy that is changed; ``head_dim`` is there already.
        built_in: the architecture is one of corefw's own, which don't know every kind.

    Raises:
        ModelFormatError: a value that can't be computed with.
    """
    kinds = BUILT_IN_KINDS if built_in else _KINDS
    scaling = _checked(reader, "rope_scaling", kinds)
    if reader.has("rope_parameters") and reader.child("rope_parameters").values:
        by_layer = reader.child("rope_parameters").values.values()
        if not any(isinstance(value, dict) for value in by_layer):
            scaling = _checked(reader, "rope_parameters", kinds)
            config["rope_theta"] = scaling.pop("rope_theta", config.get("rope_theta", 10000.0))
            config.pop("rope_parameters")
        elif built_in:
            reader.fail("rope_parameters", "has parameters by kind of layer, which this architecture doesn't support")
        else:
            _check_each_kind_of_layer(reader.child("rope_parameters"), kinds)
    if "partial_rotary_factor" in scaling:
        config["partial_rotary_factor"] = scaling.pop("partial_rotary_factor")
    if config.get("partial_rotary_factor") is None:
        config.pop("partial_rotary_factor", None)
    config["rope_scaling"] = None if scaling.get("rope_type", "default") == "default" else scaling
    _check_rotary_size(reader, config)


def _check_each_kind_of_layer(parameters: ConfigReader, kinds: frozenset[str]) -> None:
    for key in parameters.values:
        if parameters.has(key):
            _checked(parameters, key, kinds)


def _checked(parent: ConfigReader, key: str, kinds: frozenset[str]) -> dict[str, Any]:
    """The object with its kind under ``rope_type``, whichever of its two names was used; empty for null."""
    if not parent.has(key):
        return {}
    reader = parent.child(key)
    name = "rope_type" if reader.has("rope_type") else "type"
    kind = reader.choice(name, kinds) if reader.has(name) else "default"
    for name in _POSITIVE:
        if reader.has(name) or name in _NEEDED.get(kind, ()):
            reader.number(name)
    name = "original_max_position_embeddings"
    if reader.has(name) or name in _NEEDED.get(kind, ()):
        reader.whole(name, _MAX_POSITION)
    if reader.has("partial_rotary_factor"):
        reader.number("partial_rotary_factor", high=1.0)
    if kind == "llama3" and reader.values["high_freq_factor"] <= reader.values["low_freq_factor"]:
        reader.refuse("high_freq_factor", "a number above low_freq_factor")
    left_out = ("type", "rope_type")
    return {"rope_type": kind} | {
        name: value for name, value in reader.values.items() if name not in left_out and value is not None
    }


def _check_rotary_size(reader: ConfigReader, config: dict[str, Any]) -> None:
    """Pairs of elements are turned."""
    size = int(config["head_dim"] * config.get("partial_rotary_factor", 1.0))
    if size < 2 or size % 2:
        key = "partial_rotary_factor" if "partial_rotary_factor" in config else "head_dim"
        reader.fail(key, f"gives {size} rotated elements a head, expected an even number from 2")
