"""The attention backend on the pack's kernels; see ``csrc/kernels_attention.cpp``.

Pages are laid out as the core's own backend has them: [K, B, W] with a token's key and value side by side, in int8
followed by the scales of both.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import ClassVar

import torch

from corefw.errors import EngineError, PluginError
from corefw.interfaces.attention import (
    AttentionBackend,
    AttentionBatch,
    AttentionImpl,
    AttentionLayerSpec,
    AttentionMetadata,
    AttentionRequest,
    Capabilities,
    GraphSupport,
    MetadataBuilder,
    PageView,
)
from corefw.interfaces.kv_cache import DTYPE_BYTES, AttentionSpec, KVCacheSpec
from corefw_cpu_kernels import library
from corefw_cpu_kernels.calls import Kernel

__all__ = ["CpuKernelsAttention", "StepMetadata", "StepMetadataBuilder"]

_attention = Kernel("attention")
_write_kv_pages = Kernel("write_kv_pages")

_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
_STEP = struct.Struct("=6q")
_LARGEST_HEAD = 512


class _CpuCapabilities(Capabilities):
    __slots__ = ()

    def supports(self, request: AttentionRequest) -> str | None:
        if request.device_type not in self.device_types:
            return f"its kernels run on cpu, not on {request.device_type}"
        missing = library.unavailable()
        if missing is not None:
            return missing
        if request.head_size % 16 or not 0 < request.head_size <= _LARGEST_HEAD:
            return f"head size {request.head_size} is no multiple of 16 up to {_LARGEST_HEAD}"
        return Capabilities.supports(self, request)


class StepMetadata(AttentionMetadata):
    """Where a step's arrays lie; the kernels read them when they run.

    Attributes:
        step: int64 words at a fixed address, ``struct Step`` of ``csrc/attention.h``.
    """

    __slots__ = ("step",)

    def __init__(self, step: torch.Tensor) -> None:
        self.step = step


class StepMetadataBuilder(MetadataBuilder):
    """Writes the addresses of a step's arrays into one buffer, so that a recorded call finds the next step's there."""

    def __init__(self) -> None:
        step = torch.zeros(_STEP.size // 8, dtype=torch.int64)
        self._words = step.numpy().data
        self._metadata = StepMetadata(step)
        self._batch: AttentionBatch | None = None

    def build(self, batch: AttentionBatch) -> StepMetadata:
        self._batch = batch  # what was written are addresses: its arrays have to live
        table = batch.block_table
        _STEP.pack_into(
            self._words,
            0,
            batch.seq_lens.shape[0],
            batch.query_starts.data_ptr(),
            batch.seq_lens.data_ptr(),
            table.data_ptr(),
            table.stride(0),
            batch.block_size,
        )
        return self._metadata


class CpuKernelsAttention(AttentionBackend):
    """Paged attention in C++: chunks of keys over all threads for decodes, tiles of queries for prompts."""

    name: ClassVar[str] = "cpu_kernels"
    capabilities: ClassVar[Capabilities] = _CpuCapabilities(
        device_types=frozenset({"cpu"}),
        dtypes=frozenset({"bfloat16"}),
        kv_dtypes=frozenset({"bfloat16", "int8"}),
        head_sizes=tuple(range(16, _LARGEST_HEAD + 1, 16)),
        default_block_size=16,
        sliding_window=True,
        soft_cap=True,
        batch_invariant_dtypes=frozenset({"bfloat16"}),
        graph_support=GraphSupport.ALWAYS,
        reads_unwritten=False,
    )

    @classmethod
    def page_view(cls, spec: KVCacheSpec) -> PageView:
        if not isinstance(spec, AttentionSpec) or spec.tokens_per_state != 1:
            raise PluginError(f"attention backend 'cpu_kernels' keeps keys and values of every token, not {spec}")
        width = spec.head_bytes // DTYPE_BYTES[spec.dtype]
        return PageView(shape=(spec.num_kv_heads, spec.block_size, width), strides=(spec.block_size * width, width, 1))

    @classmethod
    def builder(cls, layers: Sequence[AttentionLayerSpec], block_size: int, max_num_seqs: int) -> StepMetadataBuilder:
        del layers, block_size, max_num_seqs
        return StepMetadataBuilder()

    @classmethod
    def implementation(cls, layer: AttentionLayerSpec, *, dtype: torch.dtype, batch_invariant: bool) -> AttentionImpl:
        return _Kernels(layer, dtype, batch_invariant)


class _Kernels(AttentionImpl):
    def __init__(self, layer: AttentionLayerSpec, dtype: torch.dtype, batch_invariant: bool) -> None:
        self._heads = (layer.num_heads, layer.num_kv_heads, layer.head_size)
        self._scores = (float(layer.scale), layer.sliding_window or 0, float(layer.soft_cap or 0))
        self._kind = _KINDS[dtype]
        self._fixed_order = int(batch_invariant)

    def write_cache(
        self, key_TKD: torch.Tensor, value_TKD: torch.Tensor, pages: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        key, value = _heads_side_by_side(key_TKD), _heads_side_by_side(value_TKD)
        _write_kv_pages(
            key,
            value,
            key.stride(0),
            value.stride(0),
            pages,
            pages.stride(0) * pages.itemsize,
            slot_mapping,
            *key.shape,
            pages.shape[2],
            self._kind,
            _KINDS[pages.dtype],
        )

    def forward(self, query_THD: torch.Tensor, pages: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        if not isinstance(metadata, StepMetadata):
            raise EngineError(f"attention backend 'cpu_kernels' got metadata of {type(metadata).__name__}")
        query = _heads_side_by_side(query_THD)
        out = torch.empty(query.shape, dtype=query.dtype)
        _attention(
            out,
            query,
            query.stride(0),
            query.shape[0],
            pages,
            pages.stride(0) * pages.itemsize,
            metadata.step,
            *self._heads,
            *self._scores,
            self._kind,
            _KINDS[pages.dtype],
            self._fixed_order,
        )
        return out


def _heads_side_by_side(tensor_THD: torch.Tensor) -> torch.Tensor:
    """Tokens may lie anywhere apart, as when they are parts of longer rows."""
    _, heads, size = tensor_THD.shape
    return (
        tensor_THD
        if tensor_THD.stride()[1:] == (size, 1) or (heads == 1 and tensor_THD.stride(2) == 1)
        else tensor_THD.contiguous()
    )
