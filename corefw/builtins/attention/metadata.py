"""What the torch backend knows about a step: lengths on the host, tables on the device, and plans made once a step."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from corefw.interfaces.attention import AttentionBatch, AttentionMetadata, MetadataBuilder

__all__ = ["Span", "TorchMetadata", "TorchMetadataBuilder"]

P = TypeVar("P")


class Span:
    """One request's part of a step.

    Attributes:
        row: in the block table.
        start: its first token in the step.
        num_tokens: tokens in the step, at least 1.
        length: context after the step; the first token stands at ``length - num_tokens``.
    """

    __slots__ = ("length", "num_tokens", "row", "start")

    def __init__(self, row: int, start: int, num_tokens: int, length: int) -> None:
        self.row = row
        self.start = start
        self.num_tokens = num_tokens
        self.length = length


class TorchMetadata(AttentionMetadata):
    """One step.

    Attributes:
        num_tokens: T.
        spans: the requests that have tokens in the step.
        block_table: [R, M] on the device.
        block_size: tokens a page.
    """

    def __init__(self, batch: AttentionBatch) -> None:
        starts = batch.query_starts.tolist()
        lengths = batch.seq_lens.tolist()
        self.num_tokens = batch.num_tokens
        self.block_table = batch.block_table
        self.block_size = batch.block_size
        self.spans = [
            Span(row, starts[row], starts[row + 1] - starts[row], length)
            for row, length in enumerate(lengths)
            if starts[row + 1] > starts[row]
        ]
        self._plans: dict[Hashable, object] = {}

    def plan(self, key: Hashable, make: Callable[[], P]) -> P:
        """What layers of the same shape share: made by the first that asks in the step."""
        if key not in self._plans:
            self._plans[key] = make()
        return self._plans[key]  # type: ignore[return-value]


class TorchMetadataBuilder(MetadataBuilder):
    """Nothing is captured, so nothing has to persist between steps."""

    def build(self, batch: AttentionBatch) -> TorchMetadata:
        return TorchMetadata(batch)
