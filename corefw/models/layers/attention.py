"""The attention layer: writes the step's keys and values, then asks the backend."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from corefw.errors import EngineError
from corefw.interfaces.attention import AttentionLayerSpec
from corefw.interfaces.kv_cache import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from corefw.models.layers.context import BuildContext
from corefw.models.layers.forward_context import get_forward_context

__all__ = ["Attention"]


class Attention(nn.Module):
    """Attention of one decoder layer over paged KV.

    Args:
        spec: this rank's part of the layer.
        build: names the backend.
    """

    def __init__(self, spec: AttentionLayerSpec, build: BuildContext) -> None:
        super().__init__()
        self.spec = spec
        self._kv_dtype_name = build.kv_dtype_name or build.dtype_name
        self._hybrid_kv = build.hybrid_kv
        self._impl = build.attention_backend.implementation(
            spec, dtype=build.dtype, batch_invariant=build.batch_invariant
        )
        self._pages: torch.Tensor | None = None

    def kv_cache_spec(self, block_size: int) -> KVCacheSpec:
        """What this layer keeps in the cache, for blocks of that size."""
        shape: dict[str, Any] = {
            "block_size": block_size,
            "num_kv_heads": self.spec.num_kv_heads,
            "head_size": self.spec.head_size,
            "dtype": self._kv_dtype_name,
        }
        if self._hybrid_kv and self.spec.sliding_window is not None:
            return SlidingWindowSpec(**shape, sliding_window=self.spec.sliding_window)
        return FullAttentionSpec(**shape, sliding_window=self.spec.sliding_window)

    def bind_pages(self, pages: torch.Tensor) -> None:
        """Give the layer its view of the cache, [P, *PageView.shape]. Called once before the first real step."""
        self._pages = pages

    def forward(self, query_THD: torch.Tensor, key_TKD: torch.Tensor, value_TKD: torch.Tensor) -> torch.Tensor:
        """Attend. Heads may come folded into the last dimension; the result has the query's shape."""
        split = get_forward_context().split
        if split is not None:
            return split(self._attend, query_THD, key_TKD, value_TKD)
        return self._attend(query_THD, key_TKD, value_TKD)

    def _attend(self, query_THD: torch.Tensor, key_TKD: torch.Tensor, value_TKD: torch.Tensor) -> torch.Tensor:
        context = get_forward_context()
        if context.attention is None:
            return torch.zeros_like(query_THD)
        if self._pages is None:
            raise EngineError(f"attention layer {self.spec.name} has no pages: bind_pages was not called")
        spec = self.spec
        self._impl.write_cache(
            key_TKD.reshape(-1, spec.num_kv_heads, spec.head_size),
            value_TKD.reshape(-1, spec.num_kv_heads, spec.head_size),
            self._pages,
            context.slot_mapping[spec.name],
        )
        out = self._impl.forward(
            query_THD.reshape(-1, spec.num_heads, spec.head_size), self._pages, context.attention[spec.name]
        )
        return out.reshape(query_THD.shape)
