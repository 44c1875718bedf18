"""Sizes and layer kinds that model configurations state in more than one way."""

from __future__ import annotations

from corefw.models.shape import has_sliding_window, head_size, layer_kind, num_kv_heads, sliding_window

__all__ = ["has_sliding_window", "head_size", "layer_kind", "num_kv_heads", "sliding_window"]
