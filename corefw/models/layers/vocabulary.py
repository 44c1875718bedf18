"""The vocabulary's two ends: embedding and output head, cut by token id.

Shapes: T tokens, R rows to sample from, E model width, V vocabulary.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from corefw.models.layers.context import BuildContext
from corefw.models.layers.packed_parameter import PackedParameter, PackedWeight, weight_parameter
from corefw.models.layers.parameter import Parameter, Piece
from corefw.models.layers.product import ProductLayer, WeightLayer
from corefw.models.layers.sharding import split_padded

__all__ = ["ParallelLMHead", "VocabParallelEmbedding"]


class VocabParallelEmbedding(WeightLayer):
    """Token id → vector; a rank looks up its own ids and the others add theirs."""

    kind = "embedding"

    def __init__(self, vocab_size: int, width: int, build: BuildContext) -> None:
        super().__init__()
        self._split = split_padded(vocab_size, build.tp)
        self.weight = weight_parameter({"": Piece((vocab_size, width), 0, self._split)}, build)
        self._shape: dict[str, Any] = {"num_embeddings": self._split.padded_size, "width": width}
        self._binder, self._dtype = build.binder, build.dtype
        self._embedding = build.binder.bind("embedding")
        self._tp = build.tp

    def prepare_weight(self) -> None:
        """Look ids up in blocks, if the weight is in blocks."""
        weight = self.weight
        if not isinstance(weight, PackedParameter):
            return
        settled = weight.settled()
        if isinstance(settled, PackedWeight):
            self._compute_with(settled.layout)
            settled = settled.prepare("quantized_embedding", self._binder, self._shape)
        self._replace_weight(settled)

    def _compute_with(self, layout: str | None) -> None:
        self._layout = layout
        if layout is None:
            return
        kernel = self._binder.bind("quantized_embedding", layout=layout, **self._shape)
        self._embedding = partial(kernel, layout=layout, width=self._shape["width"], dtype=self._dtype)

    def share(self, prepared: torch.Tensor) -> None:
        """Look ids up in the output head's prepared weight from now on."""
        self._replace_weight(prepared)

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

    kind = "lm_head"

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
        weight = tied.weight if tied else weight_parameter({"": Piece((vocab_size, width), 0, split)}, build)
        assert isinstance(weight, Parameter), "layers are built before weights are prepared"
        self._bind(weight, build)
        self._tied = (tied,) if tied else ()  # in a tuple: it is no part of this layer
        self._tp = build.tp
        self._vocab_size = vocab_size
        self._soft_cap = soft_cap
        self._capped = None if soft_cap is None else build.binder.bind("soft_cap")
        self._most_likely = build.binder.bind("most_likely")

    def prepare_weight(self) -> None:
        """Let the kernel's provider lay the loaded weight out, for the embedding too where both can read it."""
        super().prepare_weight()
        if self._layout is None and self._binder.embeds_prepared(**self._shape):
            for embedding in self._tied:
                embedding.share(self.weight)

    def forward(self, hidden_RE: torch.Tensor) -> torch.Tensor:
        """[R, E] → [R, V]."""
        logits: torch.Tensor = self._linear(hidden_RE, self.weight, None)
        if self._capped is not None:
            logits = self._capped(logits, self._soft_cap)
        if self._tp.size == 1:
            return logits
        return self._tp.all_gather(logits)[:, : self._vocab_size]

    def choose(self, hidden_RE: torch.Tensor, num_ids: int) -> tuple[torch.Tensor, torch.Tensor]:
        """[R, E] → of the first ``num_ids`` of the vocabulary the largest logit [R], and its id [R]."""
        values_R, ids_R = self._most_likely(self(hidden_RE), num_ids)
        return values_R, ids_R
