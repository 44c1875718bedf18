"""Gemma 3 text models: Gemma 2 with norms of heads instead of caps, and another rotation in layers with a window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from corefw.models.gemma2 import Gemma2ForCausalLM
from corefw.models.layers.rope import RopeParameters, rope_parameters
from corefw.models.shape import head_size

__all__ = ["Gemma3ForCausalLM"]

_GLOBAL_THETA, _LOCAL_THETA = 1_000_000.0, 10_000.0


class Gemma3ForCausalLM(Gemma2ForCausalLM):
    """Gemma 3 text models."""

    head_norms: ClassVar[bool] = True

    def rope(self, config: Mapping[str, Any], kind: str) -> RopeParameters:
        """Either ``rope_parameters`` by kind, or ``rope_theta``, ``rope_scaling`` and ``rope_local_base_freq``."""
        own = (config.get("rope_parameters") or {}).get(kind)
        if kind == "sliding_attention":
            theta, scaling = config.get("rope_local_base_freq", _LOCAL_THETA), own
        else:
            theta, scaling = config.get("rope_theta", _GLOBAL_THETA), own or config.get("rope_scaling")
        stated = {"rope_theta": theta, **(scaling or {})}
        return rope_parameters({**config, "rope_parameters": stated}, head_size(config))
