"""The vocabulary's two ends: embedding and output head, cut by token id.

Shapes: T tokens, R rows to sample from, E model width, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import nn

from corefw.models.layers.context import BuildContext
from corefw.models.layers.parameter import Parameter, Piece
from corefw.models.layers.product import ProductLayer
from corefw.models.layers.sharding import split_padded

__all__ = ["ParallelLMHead", "VocabParallelEmbedding"]


class VocabParallelEmbedding(nn.Module):
    """Token id → vector; a rank looks up its own ids and the others add theirs."""

    def __init__(self, vocab_size: int, width: int, build: BuildContext) -> None:
        super().__init__()
        self._split = split_padded(vocab_size, build.tp)
        self.weight = Parameter({"": Piece((vocab_size, width), 0, self._split)}, build)
        self._embedding = build.binder.bind("embedding")
        self._tp = build.tp

    def forward(self, ids_T: torch.Tensor) -> torch.Tensor:
        """[T] → [T, E]."""
        if self._tp.size == 1:
            out: torch.Tensor = self._embedding(ids_T, self.weight)
            return out
        local = ids_T - self._split.start
        foreign = (local < 0) | (local >= self._split.size)
        part = self._embedding(local.masked_fill(foreign, 0), self.weight)
        return self._tp.all_reduce(part.masked_fill(foreign.unsqueeze(-1), 0))


class ParallelLMHead(ProductLayer):
    """Hidden vector → logits of the whole vocabulary, on every rank.

    Args:
        vocab_size: V.
        width: E.
        build: the build context.
        tied: the embedding whose weight is also this one's, if so.
        soft_cap: bound on the size of logits, approached smoothly.
    """

    def __init__(
        self,
        vocab_size: int,
        width: int,
        build: BuildContext,
        *,
        tied: VocabParallelEmbedding | None,
        soft_cap: float | None = None,
    ) -> None:
        super().__init__()
        split = split_padded(vocab_size, build.tp)
        self._bind(tied.weight if tied else Parameter({"": Piece((vocab_size, width), 0, split)}, build), build)
        self._tp = build.tp
        self._vocab_size = vocab_size
        self._soft_cap = soft_cap
        self._capped = None if soft_cap is None else build.binder.bind("soft_cap")

    def forward(self, hidden_RE: torch.Tensor) -> torch.Tensor:
        """[R, E] → [R, V]."""
        logits: torch.Tensor = self._linear(hidden_RE, self.weight, None)
        if self._capped is not None:
            logits = self._capped(logits, self._soft_cap)
        if self._tp.size == 1:
            return logits
        return self._tp.all_gather(logits)[:, : self._vocab_size]
