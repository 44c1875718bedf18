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
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    30: TensorType("BF16", 1, 2),
}

# Only for messages: types that exist, but can't be read here.
_OTHER_NAMES: dict[int, str] = {
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}

TYPE_NAMES: dict[int, str] = {**_OTHER_NAMES, **{code: kind.name for code, kind in TYPES_BY_CODE.items()}}
