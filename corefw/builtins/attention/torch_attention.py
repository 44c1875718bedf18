"""The attention backend that runs wherever torch does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from corefw.builtins.attention.fused import fused_attention
from corefw.builtins.attention.metadata import TorchMetadata, TorchMetadataBuilder
from corefw.builtins.attention.pages import write_pages
from corefw.builtins.attention.tiled import tiled_attention
from corefw.errors import EngineError, PluginError
from corefw.interfaces.attention import (
    AttentionBackend,
    AttentionImpl,
    AttentionLayerSpec,
    AttentionMetadata,
    Capabilities,
    PageView,
)
from corefw.interfaces.kv_cache import DTYPE_BYTES, AttentionSpec, KVCacheSpec

__all__ = ["TorchAttention"]

_DTYPES = frozenset({"float32", "bfloat16", "float16"})


class TorchAttention(AttentionBackend):
    """Paged attention in plain torch: tiled in a fixed order, or fused where the order may change."""

    name: ClassVar[str] = "torch"
    capabilities: ClassVar[Capabilities] = Capabilities(
        device_types=frozenset({"cpu"}),
        dtypes=_DTYPES,
        kv_dtypes=_DTYPES | {"int8"},
        default_block_size=16,
        sliding_window=True,
        soft_cap=True,
        batch_invariant_dtypes=_DTYPES,
    )

    @classmethod
    def page_view(cls, spec: KVCacheSpec) -> PageView:
        if not isinstance(spec, AttentionSpec) or spec.tokens_per_state != 1:
            raise PluginError(f"attention backend 'torch' keeps keys and values of every token, not {spec}")
        width = spec.head_bytes // DTYPE_BYTES[spec.dtype]
        return PageView(shape=(spec.num_kv_heads, spec.block_size, width), strides=(spec.block_size * width, width, 1))

    @classmethod
    def builder(cls, layers: Sequence[AttentionLayerSpec], block_size: int, max_num_seqs: int) -> TorchMetadataBuilder:
        del layers, block_size, max_num_seqs
        return TorchMetadataBuilder()

    @classmethod
    def implementation(cls, layer: AttentionLayerSpec, *, dtype: torch.dtype, batch_invariant: bool) -> AttentionImpl:
        fused = dtype != torch.float32 and not batch_invariant and layer.soft_cap is None
        return _TorchAttentionImpl(layer, fused=fused)


class _TorchAttentionImpl(AttentionImpl):
    def __init__(self, layer: AttentionLayerSpec, *, fused: bool) -> None:
        self._layer = layer
        self._attention = fused_attention if fused else tiled_attention

    def write_cache(
        self, key_TKD: torch.Tensor, value_TKD: torch.Tensor, pages: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        write_pages(key_TKD, value_TKD, pages, slot_mapping)

    def forward(self, query_THD: torch.Tensor, pages: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        if not isinstance(metadata, TorchMetadata):
            raise EngineError(f"attention backend 'torch' got metadata of {type(metadata).__name__}")
        return self._attention(query_THD, pages, metadata, self._layer)
