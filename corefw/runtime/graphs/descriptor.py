"""What a recording is found by."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum

__all__ = ["BatchDescriptor", "GraphMode"]


class GraphMode(IntEnum):
    """How much of a step is recorded; larger is more."""

    NONE = 0
    PIECEWISE = 1
    FULL = 2


@dataclass(frozen=True, slots=True)
class BatchDescriptor:
    """A padded batch. Batches with equal ones are computed by the same recording.

    Attributes:
        mode: whole, or in pieces between attention.
        num_tokens: rows, the padding included.
        num_requests: the same; in pieces it matters to attention alone, which isn't recorded: 0.
        is_decode: every request has one token; logits of all of them are part of the recording.
        extension: what else decides which kernels run (an extension's key).
        is_greedy: instead of logits, the most likely tokens are part of the recording.
    """

    mode: GraphMode
    num_tokens: int
    num_requests: int
    is_decode: bool
    extension: Hashable = None
    is_greedy: bool = False

    @property
    def kind(self) -> str:
        """What it is one of, for messages."""
        how = "whole" if self.mode is GraphMode.FULL else "in pieces"
        of = f" with {self.extension}" if self.extension is not None else ""
        return f"{self._steps} steps{of} {how}"

    def __str__(self) -> str:
        of = f", {self.extension}" if self.extension is not None else ""
        return f"{self.mode.name.lower()} {self._steps} step of {self.num_tokens} tokens{of}"

    @property
    def _steps(self) -> str:
        return "greedy decode" if self.is_greedy else "decode" if self.is_decode else "mixed"
