"""Tensor element types of a GGUF file: names, and the geometry of those that can be read."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TYPES_BY_CODE", "TYPE_NAMES", "TensorType"]


@dataclass(frozen=True, slots=True)
class TensorType:
    """One element type.

    Attributes:
        name: as the GGUF documentation spells it.
        block_elements: elements in a block; 1 for plain floats.
        block_bytes: bytes of a block.
    """

    name: str
    block_elements: int
    block_bytes: int

    @property
    def is_block(self) -> bool:
        """Whether it is a block-quantised type."""
        return self.block_elements > 1


# Codes and sizes: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
TYPES_BY_CODE: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    20: TensorType("IQ4_NL", 32, 18),
    23: TensorType("IQ4_XS", 256, 136),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
}

# Only for messages: types that exist, but can't be read here.
_OTHER_NAMES: dict[int, str] = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    40: "NVFP4",
    41: "Q1_0",
}

TYPE_NAMES: dict[int, str] = {**_OTHER_NAMES, **{code: kind.name for code, kind in TYPES_BY_CODE.items()}}
