"""What a quantisation method makes weights of. Imports torch."""

from __future__ import annotations

from corefw.models.layers.block_quantizers import quantised_4_bits, quantised_8_bits, quantised_8_bits_both
from corefw.models.layers.blocks import BlockTensor

__all__ = ["BlockTensor", "quantised_4_bits", "quantised_8_bits", "quantised_8_bits_both"]
