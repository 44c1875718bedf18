"""An attention backend whose kernels need the chip. What it can do is declared without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corefw.errors import PluginUnavailable
from corefw.interfaces.attention import (
    AttentionBackend,
    AttentionImpl,
    AttentionLayerSpec,
    Capabilities,
    MetadataBuilder,
    PageView,
)

if TYPE_CHECKING:
    import torch

    from corefw.interfaces.kv_cache import KVCacheSpec


class BigChipFlash(AttentionBackend):
    """In bfloat16 alone."""

    name = "bigchip_flash"
    capabilities = Capabilities(
        device_types=frozenset({"bigchip"}), dtypes=frozenset({"bfloat16"}), kv_dtypes=frozenset({"bfloat16"})
    )

    @classmethod
    def page_view(cls, spec: KVCacheSpec) -> PageView:
        """Needs the hardware."""
        raise PluginUnavailable("no BigChip is plugged in")

    @classmethod
    def builder(cls, layers: Sequence[AttentionLayerSpec], block_size: int, max_num_seqs: int) -> MetadataBuilder:
        """Needs the hardware."""
        raise PluginUnavailable("no BigChip is plugged in")

    @classmethod
    def implementation(cls, layer: AttentionLayerSpec, *, dtype: torch.dtype, batch_invariant: bool) -> AttentionImpl:
        """Needs the hardware."""
        raise PluginUnavailable("no BigChip is plugged in")
