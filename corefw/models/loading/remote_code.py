"""Models that bring their own code. Torch-free."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from corefw.errors import ConfigError

if TYPE_CHECKING:
    from corefw.config.model_info import ModelInfo

__all__ = ["refuse_remote_code"]


def refuse_remote_code(info: ModelInfo, families: Collection[str], *, trusted: bool) -> None:
    """Refuse a model that only its own code can compute. corefw itself never runs such code, trusted or not.

    Args:
        info: what is known of the model.
        families: architectures that have a model class here; code that comes beside one of these isn't needed.
        trusted: the operator allows plugins to run it.

    Raises:
        ConfigError: there is such code, it would be needed, and it isn't trusted.
    """
    auto_map = info.hf_config.get("auto_map")
    if trusted or info.architecture in families or not isinstance(auto_map, Mapping) or not auto_map:
        return
    named = ", ".join(f"{key}: {value}" for key, value in list(auto_map.items())[:3])
    raise ConfigError(
        f"{info.files.root}: the model brings its own code (auto_map in config.json: {named[:200]}), and no model "
        f"family fits {info.architecture[:80]!r}; known: {', '.join(sorted(families))}. corefw never runs code "
        "from a model's directory; if you trust it, --trust-remote-code lets a plugin run it that can, such as "
        "corefw-models-transformers (pip install)"
    )
