"""The rotary embedding in a Hugging Face configuration: checked, and in one form. Torch-free."""

from __future__ import annotations

from typing import Any

from corefw.models.loading.config_reader import ConfigReader

__all__ = ["BUILT_IN_KINDS", "LEAST", "MOST", "normalise_rope"]

# Far beyond what models have, and the table of cosines stays finite in float32.
LEAST, MOST = 1e-6, 1e12

BUILT_IN_KINDS = frozenset({"default", "dynamic", "linear", "llama3", "longrope", "yarn"})
# What configurations may say; models of plugins may know how to compute it.
_KINDS = BUILT_IN_KINDS | {"mrope", "proportional", "su"}
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
    "dynamic": ("factor",),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor"),
    "yarn": ("factor",),
}
_LISTS = ("short_factor", "long_factor")
_WEIGHTS = ("mscale", "mscale_all_dim")
_ORIGINAL = "original_max_position_embeddings"
_MAX_POSITION = 2**31
_LONGROPE_ONCE = ("su", "yarn")  # what older configurations call it


def normalise_rope(reader: ConfigReader, config: dict[str, Any], *, built_in: bool, by_layer: bool) -> None:
    """``rope_theta``, ``rope_scaling`` and ``partial_rotary_factor`` also where only ``rope_parameters`` is written.

    Args:
        reader: of the file.
        config: the copy that is changed; ``head_dim`` is there already.
        built_in: the architecture is one of corefw's own, which don't know every kind.
        by_layer: the architecture may have parameters by kind of layer.

    Raises:
        ModelFormatError: a value that can't be computed with.
    """
    kinds = BUILT_IN_KINDS if built_in else _KINDS
    scaling = _checked(reader, "rope_scaling", kinds)
    if reader.has("rope_parameters") and reader.child("rope_parameters").values:
        parameters = reader.child("rope_parameters").values.values()
        if not any(isinstance(value, dict) for value in parameters):
            scaling = _checked(reader, "rope_parameters", kinds)
            config["rope_theta"] = scaling.pop("rope_theta", config.get("rope_theta", 10000.0))
            config.pop("rope_parameters")
        elif not by_layer:
            reader.fail("rope_parameters", "has parameters by kind of layer, which this architecture doesn't support")
        else:
            _check_each_kind_of_layer(reader.child("rope_parameters"), kinds)
    if "partial_rotary_factor" in scaling:
        config["partial_rotary_factor"] = scaling.pop("partial_rotary_factor")
    if config.get("partial_rotary_factor") is None:
        config.pop("partial_rotary_factor", None)
    config["rope_scaling"] = None if scaling.get("rope_type", "default") == "default" else scaling
    if config.get("head_dim") is not None:
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
    if reader.has("long_factor") and reader.values.get(name) in _LONGROPE_ONCE:
        kind = "longrope"
    else:
        kind = reader.choice(name, kinds) if reader.has(name) else "default"
    _check_parameters(reader, _needed(parent, reader, kind))
    if kind == "llama3" and reader.values["high_freq_factor"] <= reader.values["low_freq_factor"]:
        reader.refuse("high_freq_factor", "a number above low_freq_factor")
    left_out = ("type", "rope_type")
    return {"rope_type": kind} | {
        name: value for name, value in reader.values.items() if name not in left_out and value is not None
    }


def _needed(parent: ConfigReader, reader: ConfigReader, kind: str) -> tuple[str, ...]:
    if kind == "yarn" and (reader.has(_ORIGINAL) or parent.has(_ORIGINAL)):
        return ()  # the factor follows from both lengths
    return _NEEDED.get(kind, ())


def _check_parameters(reader: ConfigReader, needed: tuple[str, ...]) -> None:
    for name in _POSITIVE:
        if reader.has(name) or name in needed:
            reader.number(name, low=LEAST, high=MOST, low_open=False)
    for name in _LISTS:
        if reader.has(name) or name in needed:
            reader.numbers(name, low=LEAST, high=MOST)
    if reader.has(_ORIGINAL) or _ORIGINAL in needed:
        reader.whole(_ORIGINAL, _MAX_POSITION)
    for name in filter(reader.has, _WEIGHTS):
        reader.number(name, high=MOST, low_open=False)
    if reader.has("truncate"):
        reader.flag("truncate")
    if reader.has("partial_rotary_factor"):
        reader.number("partial_rotary_factor", high=1.0)


def _check_rotary_size(reader: ConfigReader, config: dict[str, Any]) -> None:
    """Pairs of elements are turned."""
    size = int(config["head_dim"] * config.get("partial_rotary_factor", 1.0))
    if size < 2 or size % 2:
        key = "partial_rotary_factor" if "partial_rotary_factor" in config else "head_dim"
        reader.fail(key, f"gives {size} rotated elements a head, expected an even number from 2")
