"""How a weight made of several block types is written down: ``Q4_K:1024+Q6_K:256`` is its rows from top to bottom.

Besides the block types of GGUF files there is one: ``W8A8`` is ``Q8_0`` in bytes, but all blocks of a row have one
scale, and inputs of a product are rounded to as many bits, with a scale for each of their rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from corefw.models.loading.gguf_types import TYPES_BY_CODE, TensorType

__all__ = ["W8A8", "Segment", "joined_layout", "parse_layout"]

W8A8 = TensorType("W8A8", 32, 34)
_TYPES = {kind.name: kind for kind in (*TYPES_BY_CODE.values(), W8A8)}


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one type; ``num_rows`` is 0 where only the type is asked for."""

    type: TensorType
    num_rows: int


def parse_layout(layout: str) -> tuple[Segment, ...]:
    """The segments, from top to bottom."""
    parts = (part.partition(":") for part in layout.split("+"))
    return tuple(Segment(_TYPES[name], int(rows or 0)) for name, _, rows in parts)


def joined_layout(segments: Iterable[tuple[str, int]]) -> str:
    """The layout of (type, rows) one below the other; neighbours of one type become one."""
    merged: list[tuple[str, int]] = []
    for name, rows in segments:
        if merged and merged[-1][0] == name:
            rows += merged.pop()[1]
        merged.append((name, rows))
    return "+".join(f"{name}:{rows}" for name, rows in merged)
