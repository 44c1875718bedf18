"""AttentionBackend: declares what it can do, builds metadata once a step, computes attention over paged KV.

Shapes: T tokens of the step, R requests, H query heads, K KV heads, D head size, P pages, B block size, M table width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import torch

    from corefw.interfaces.kv_cache import KVCacheSpec

__all__ = [
    "AttentionBackend",
    "AttentionBatch",
    "AttentionImpl",
    "AttentionLayerSpec",
    "AttentionMetadata",
    "AttentionRequest",
    "Capabilities",
    "GraphSupport",
    "MetadataBuilder",
    "PageView",
]


class GraphSupport(IntEnum):
    """How far a backend can be captured; larger is more."""

    NEVER = 0
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    UNIFORM_BATCH = 2
    ALWAYS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionRequest:
    """What a model needs from attention; asked once at start.

    Attributes:
        device_type: torch's device type.
        dtype: of q, k and v.
        kv_dtype: of the cache.
        head_size: elements a head.
        block_size: the block size the user gave, or None.
        sliding_window: whether any layer has one.
        soft_cap: whether any layer caps its logits.
        sinks: whether any layer has attention sinks.
        batch_invariant: whether results must not depend on the batch.
        kind: ``decoder``, ``encoder``, ``encoder_decoder`` or ``mla``.
    """

    device_type: str
    dtype: str
    kv_dtype: str
    head_size: int
    block_size: int | None = None
    sliding_window: bool = False
    soft_cap: bool = False
    sinks: bool = False
    batch_invariant: bool = False
    kind: str = "decoder"


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What a backend can do, torch-free.

    Attributes:
        device_types: torch device types.
        dtypes: names of dtypes of q, k, v.
        kv_dtypes: names of cache dtypes.
        head_sizes: accepted sizes; empty means any.
        block_sizes: accepted kernel block sizes in rising order; empty means any.
        default_block_size: taken when nothing else decides.
        kinds: accepted attention kinds.
        batch_invariant_dtypes: dtypes in which results never depend on the batch.
        reads_unwritten: whether what lies in places of a request's blocks that nobody has written may bear on a result.
            Then new blocks are zeroed first.
    """

    device_types: frozenset[str]
    dtypes: frozenset[str]
    kv_dtypes: frozenset[str]
    head_sizes: tuple[int, ...] = ()
    block_sizes: tuple[int, ...] = ()
    default_block_size: int = 16
    kinds: frozenset[str] = frozenset({"decoder"})
    sliding_window: bool = False
    soft_cap: bool = False
    sinks: bool = False
    batch_invariant_dtypes: frozenset[str] = frozenset()
    graph_support: GraphSupport = GraphSupport.NEVER
    reads_unwritten: bool = True

    def supports(self, request: AttentionRequest) -> str | None:
        """None for yes, else the reason why not."""
        for what, value, accepted in (
            ("device", request.device_type, self.device_types),
            ("dtype", request.dtype, self.dtypes),
            ("KV dtype", request.kv_dtype, self.kv_dtypes),
            ("attention kind", request.kind, self.kinds),
        ):
            if value not in accepted:
                return f"{what} {value} not among {', '.join(sorted(accepted))}"
        for what, needed, present in (
            ("sliding window", request.sliding_window, self.sliding_window),
            ("soft cap", request.soft_cap, self.soft_cap),
            ("sinks", request.sinks, self.sinks),
            (
                f"batch invariance in {request.dtype}",
                request.batch_invariant,
                request.dtype in self.batch_invariant_dtypes,
            ),
        ):
            if needed and not present:
                return f"{what} not supported"
        if self.head_sizes and request.head_size not in self.head_sizes:
            return f"head size {request.head_size} not among {self.head_sizes}"
        if request.block_size is not None and self.block_sizes and request.block_size not in self.block_sizes:
            return f"block size {request.block_size} not among {self.block_sizes}"
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class PageView:
    """How a backend sees a page: a strided view of ``page_bytes`` raw bytes.

    Attributes:
        shape: of one page, without the page dimension.
        strides: in elements, same length.
        extra_bytes: beyond the elements (scales).
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    extra_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionLayerSpec:
    """One layer's attention.

    Attributes:
        name: unique in the model.
        num_heads: query heads on this rank.
        num_kv_heads: KV heads on this rank.
        head_size: elements a head.
        scale: multiplied with q·k.
        sliding_window: tokens a query sees (its own included), None for all.
        soft_cap: cap of the logits by tanh, None for none.
    """

    name: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    sliding_window: int | None = None
    soft_cap: float | None = None


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """What the runner knows about a step, for a metadata builder. Host arrays are numpy-backed CPU tensors.

    Attributes:
        num_tokens: T, without padding.
        query_starts: int32 [R + 1] on the CPU, exclusive prefix sum of tokens a request.
        seq_lens: int32 [R] on the CPU, context length after this step's tokens.
        block_table: int32 [R, M] on the device, padded with the null block 0; rows may lie further apart than M.
        slot_mapping: int64 [T] on the device, page * B + offset, padding is -1.
        block_size: B.
    """

    num_tokens: int
    query_starts: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    block_size: int


class AttentionMetadata:
    """Base of what a builder makes once a step and every layer's implementation reads."""


class MetadataBuilder(ABC):
    """Turns a batch into metadata. Owns persistent buffers; a step's tails beyond the batch are cleared."""

    @abstractmethod
    def build(self, batch: AttentionBatch) -> AttentionMetadata:
        """Metadata of one step, valid until the next call."""

    def build_for_capture(self, batch: AttentionBatch) -> AttentionMetadata:
        """Metadata of a step that is recorded; called where ``GraphSupport`` allows it.

        What the kernels read of it must lie where ``build`` writes that of later batches with as many rows: a replay
        reads what the last ``build`` wrote, and no Python runs. In such batches there may be padding: tokens without a
        slot at the end; requests without tokens, with a length of 0, that have the null block; a table in full width.
        """
        return self.build(batch)


class AttentionImpl(ABC):
    """One layer's kernels."""

    @abstractmethod
    def write_cache(
        self, key_TKD: torch.Tensor, value_TKD: torch.Tensor, pages: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """Store keys and values of the step's tokens at their slots; a slot of -1 is skipped."""

    @abstractmethod
    def forward(self, query_THD: torch.Tensor, pages: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        """Attention of every token over its request's context, causal.

        Args:
            query_THD: [T, H, D].
            pages: this layer's view of the cache, [P, *PageView.shape].
            metadata: from this backend's builder.

        Returns:
            [T, H, D], same dtype; never an alias of an input.
        """


class AttentionBackend(ABC):
    """A family of attention kernels (group ``corefw.attention_backends``).

    Attributes:
        name: the plugin's name.
        capabilities: torch-free declaration.
    """

    name: ClassVar[str]
    api_version: ClassVar[int] = 1
    capabilities: ClassVar[Capabilities]

    @classmethod
    @abstractmethod
    def page_view(cls, spec: KVCacheSpec) -> PageView:
        """This backend's view of a page of that spec."""

    @classmethod
    @abstractmethod
    def builder(cls, layers: Sequence[AttentionLayerSpec], block_size: int, max_num_seqs: int) -> MetadataBuilder:
        """The metadata builder of one KV-cache group, made once."""

    @classmethod
    @abstractmethod
    def implementation(cls, layer: AttentionLayerSpec, *, dtype: torch.dtype, batch_invariant: bool) -> AttentionImpl:
        """The kernels of one layer, bound once when the model is built."""
