"""GGUF block types, computed as they are in the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from corefw.interfaces.quantization import QuantizationMethod, QuantizationRequest, WeightConverter

__all__ = ["GGUFBlocks"]


class GGUFBlocks(QuantizationMethod):
    """Keeps matrices in the blocks of a GGUF file."""

    name: ClassVar[str] = "gguf"

    def supports(self, request: QuantizationRequest) -> str | None:
        if request.info.quantization != self.name:
            return "the model isn't a GGUF file with block types"
        if request.dtype == "float32":
            return "float32 is computed with dequantised weights, so that results are exact"
        return None

    def converter(self, request: QuantizationRequest) -> WeightConverter:
        return _AsTheyCome(request.info.block_types)


class _AsTheyCome(WeightConverter):
    def __init__(self, types: Sequence[str]) -> None:
        self._types = types

    def formats(self) -> Sequence[str]:
        return self._types
