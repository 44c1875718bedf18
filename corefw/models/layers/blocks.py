"""Weights in blocks: rows of bytes, each a row of a matrix in a block type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from corefw.models.loading.gguf_blocks import dequantise
from corefw.models.loading.gguf_types import TensorType

__all__ = ["BlockTensor"]


@dataclass(frozen=True, slots=True)
class BlockTensor:
    """A matrix whose rows consist of blocks.

    Attributes:
        rows: uint8 [rows, bytes of a row]; may be a view of mapped memory.
        type: of the blocks.
    """

    rows: torch.Tensor
    type: TensorType

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and elements of a row, as of the matrix."""
        num_rows, num_bytes = self.rows.shape
        return num_rows, num_bytes // self.type.block_bytes * self.type.block_elements

    def narrow(self, dim: int, start: int, length: int) -> BlockTensor | None:
        """A part of the rows (0) or of every row (1); None where that doesn't begin and end between blocks."""
        if dim == 0:
            return BlockTensor(self.rows.narrow(0, start, length), self.type)
        elements, size = self.type.block_elements, self.type.block_bytes
        if start % elements or length % elements:
            return None
        return BlockTensor(self.rows.narrow(1, start // elements * size, length // elements * size), self.type)

    def split(self, sizes: Sequence[int], dim: int) -> tuple[BlockTensor, ...]:
        """By rows, as ``torch.split``."""
        assert dim == 0, "joined weights stand one below the other"
        return tuple(BlockTensor(part, self.type) for part in self.rows.split(list(sizes)))

    def dequantised(self) -> torch.Tensor:
        """The values, float32."""
        return torch.from_numpy(dequantise(self.rows.contiguous().numpy(), self.type)).view(self.shape)
