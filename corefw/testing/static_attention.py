"""An attention backend for tests of recorded steps: few torch ops, whose shapes depend on the number of rows alone.

Shapes: T tokens, H query heads, K KV heads, G = H/K, D head size, P pages, B block size, M table width, L = M·B keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch

from corefw.interfaces.attention import (
    AttentionBackend,
    AttentionBatch,
    AttentionImpl,
    AttentionLayerSpec,
    AttentionMetadata,
    Capabilities,
    GraphSupport,
    MetadataBuilder,
    PageView,
)
from corefw.interfaces.kv_cache import AttentionSpec, KVCacheSpec

__all__ = ["DecodeStaticAttention", "StaticAttention"]

_MAX_TOKENS = 512
_MAX_KEYS = 256


class StaticMetadata(AttentionMetadata):
    """Persistent tensors, a row a token.

    Attributes:
        blocks: int64 [T, M].
        positions: int64 [T, 1], -1 for padding.
        keys: int64 [L], rising from 0.
    """

    def __init__(self, block_size: int) -> None:
        self.blocks = torch.zeros(_MAX_TOKENS, -(-_MAX_KEYS // block_size), dtype=torch.int64)
        self.positions = torch.full((_MAX_TOKENS, 1), -1)
        self.keys = torch.arange(self.blocks.shape[1] * block_size)


class StaticBuilder(MetadataBuilder):
    """Writes every step into the same tensors."""

    def __init__(self, block_size: int) -> None:
        self._metadata = StaticMetadata(block_size)

    def build(self, batch: AttentionBatch) -> StaticMetadata:
        starts, lengths = batch.query_starts.numpy().astype(np.int64), batch.seq_lens.numpy()
        counts = np.diff(starts)
        rows = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
        metadata, num_tokens = self._metadata, len(rows)
        metadata.positions.fill_(-1)
        first = np.repeat(lengths - counts - starts[:-1], counts)
        metadata.positions[:num_tokens, 0] = torch.from_numpy(first + np.arange(num_tokens))
        width = min(batch.block_table.shape[1], metadata.blocks.shape[1])
        metadata.blocks.zero_()
        metadata.blocks[:num_tokens, :width] = batch.block_table[rows, :width]
        return metadata


class StaticAttention(AttentionBackend):
    """Contexts of up to 256 tokens, steps of up to 512."""

    name: ClassVar[str] = "static"
    capabilities: ClassVar[Capabilities] = Capabilities(
        device_types=frozenset({"cpu"}),
        dtypes=frozenset({"float32", "bfloat16"}),
        kv_dtypes=frozenset({"float32", "bfloat16"}),
        sliding_window=True,
        batch_invariant_dtypes=frozenset({"float32"}),
        graph_support=GraphSupport.ALWAYS,
    )

    @classmethod
    def page_view(cls, spec: KVCacheSpec) -> PageView:
        assert isinstance(spec, AttentionSpec)
        shape = (spec.block_size, spec.num_kv_heads, 2 * spec.head_size)
        return PageView(shape=shape, strides=(shape[1] * shape[2], shape[2], 1))

    @classmethod
    def builder(cls, layers: Sequence[AttentionLayerSpec], block_size: int, max_num_seqs: int) -> StaticBuilder:
        del layers, max_num_seqs
        return StaticBuilder(block_size)

    @classmethod
    def implementation(cls, layer: AttentionLayerSpec, *, dtype: torch.dtype, batch_invariant: bool) -> AttentionImpl:
        del dtype, batch_invariant
        return _StaticImpl(layer)


class DecodeStaticAttention(StaticAttention):
    """The same, claiming less."""

    name: ClassVar[str] = "static_decode"
    capabilities: ClassVar[Capabilities] = Capabilities(
        device_types=frozenset({"cpu"}),
        dtypes=frozenset({"float32"}),
        kv_dtypes=frozenset({"float32"}),
        batch_invariant_dtypes=frozenset({"float32"}),
        graph_support=GraphSupport.UNIFORM_SINGLE_TOKEN_DECODE,
    )


class _StaticImpl(AttentionImpl):
    def __init__(self, layer: AttentionLayerSpec) -> None:
        self._layer = layer

    def write_cache(
        self, key_TKD: torch.Tensor, value_TKD: torch.Tensor, pages: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """Padding writes what is there already."""
        flat = pages.view(-1, *pages.shape[2:])
        slots = slot_mapping.clamp_min(0)
        both = torch.cat((key_TKD, value_TKD), dim=-1).to(pages.dtype)
        is_token = (slot_mapping >= 0)[:, None, None]
        flat.index_copy_(0, slots, torch.where(is_token, both, flat.index_select(0, slots)))

    def forward(self, query_THD: torch.Tensor, pages: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        assert isinstance(metadata, StaticMetadata)
        layer, num_tokens = self._layer, query_THD.shape[0]
        position = metadata.positions[:num_tokens]
        visible_TL = metadata.keys <= position
        if layer.sliding_window is not None:
            visible_TL = visible_TL & (metadata.keys > position - layer.sliding_window)
        taken = pages.index_select(0, metadata.blocks[:num_tokens].reshape(-1))
        stored = taken.view(num_tokens, -1, *taken.shape[2:]).transpose(1, 2)
        stored = torch.where(visible_TL[:, None, :, None], stored, 0.0).float()
        key, value = stored[..., : layer.head_size], stored[..., layer.head_size :]
        query = query_THD.float().view(num_tokens, layer.num_kv_heads, -1, 1, layer.head_size)
        scores = (query * key[:, :, None]).sum(-1) * layer.scale
        weights = torch.softmax(scores.masked_fill(~visible_TL[:, None, None], -1e30), dim=-1)
        mixed = (weights[..., None] * value[:, :, None]).sum(-2).flatten(1, 2)
        return torch.where((position >= 0)[:, :, None], mixed, 0.0).to(query_THD.dtype)
