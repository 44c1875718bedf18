"""A model without weights whose next token depends on every token of the context and its position.

Its attention layers store (token, position) in the paged cache through the slot mapping and read the whole context
back through the block table, so a wrong slot, position, block, length or stale page changes the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from corefw.interfaces.attention import (
    AttentionBackend,
    AttentionBatch,
    AttentionImpl,
    AttentionLayerSpec,
    AttentionMetadata,
    Capabilities,
    MetadataBuilder,
    PageView,
)
from corefw.interfaces.kv_cache import FullAttentionSpec, KVCacheSpec
from corefw.models.layers.forward_context import get_forward_context

VOCAB = 97
MODULUS = 1_000_003


def expected_hash(context: Sequence[int]) -> int:
    """What the model computes at the last token of a context."""
    total = 0
    for position, token_id in enumerate(context):
        total = (total * 31 + (token_id + 1) * (position + 7)) % MODULUS
    return total


def expected_token(context: Sequence[int]) -> int:
    """The model's greedy choice; never the poisoned token."""
    return expected_hash(context) % (VOCAB - 1)


@dataclass
class RecordedBatch(AttentionMetadata):
    batch: AttentionBatch


class RecordingBuilder(MetadataBuilder):
    def build(self, batch: AttentionBatch) -> RecordedBatch:
        return RecordedBatch(batch)


class ContextBackend(AttentionBackend):
    """Pages hold two float32 numbers a token."""

    name: ClassVar[str] = "context"
    capabilities: ClassVar[Capabilities] = Capabilities(
        device_types=frozenset({"cpu"}), dtypes=frozenset({"float32"}), kv_dtypes=frozenset({"float32"})
    )

    @classmethod
    def page_view(cls, spec: KVCacheSpec) -> PageView:
        return PageView(shape=(spec.block_size, 2), strides=(2, 1))

    @classmethod
    def builder(cls, layers: Sequence[AttentionLayerSpec], block_size: int, max_num_seqs: int) -> MetadataBuilder:
        return RecordingBuilder()

    @classmethod
    def implementation(cls, layer: AttentionLayerSpec, *, dtype: torch.dtype, batch_invariant: bool) -> AttentionImpl:
        raise NotImplementedError


class ContextLayer:
    def __init__(self, name: str) -> None:
        self.spec = AttentionLayerSpec(name=name, num_heads=1, num_kv_heads=1, head_size=1, scale=1.0)
        self.pages = torch.empty(0)

    def kv_cache_spec(self, block_size: int) -> KVCacheSpec:
        return FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype="float32")

    def bind_pages(self, pages: torch.Tensor) -> None:
        self.pages = pages

    def contexts(self, input_ids: torch.Tensor, positions: torch.Tensor) -> list[list[int]]:
        """Writes the step's tokens, then reads every token's context."""
        context = get_forward_context()
        assert context.attention is not None
        metadata = context.attention[self.spec.name]
        assert isinstance(metadata, RecordedBatch)
        batch = metadata.batch
        flat = self.pages.view(-1, 2)
        flat[context.slot_mapping[self.spec.name]] = torch.stack([input_ids, positions], -1).float()
        found = []
        for row, seq_len in enumerate(batch.seq_lens.tolist()):
            start, end = batch.query_starts[row : row + 2].tolist()
            index = torch.arange(seq_len)
            slots = batch.block_table[row, index // batch.block_size].long() * batch.block_size
            stored = flat[slots + index % batch.block_size].long()
            assert stored[:, 1].tolist() == list(range(seq_len)), "stored positions don't run from zero"
            tokens = stored[:, 0].tolist()
            found += [tokens[: seq_len - end + token + 1] for token in range(start, end)]
        return found


class ContextModel(nn.Module):
    """Logits peak at ``expected_token`` of the context; ``poisoned`` as the last token makes them NaN."""

    poisoned = VOCAB - 1

    def __init__(self, num_layers: int = 2) -> None:
        super().__init__()
        self.attention_layers = [ContextLayer(f"layers.{index}") for index in range(num_layers)]
        self.num_tokens_seen: list[int] = []
        self.num_logits_rows: list[int] = []

    def forward(self, input_ids_T: torch.Tensor, positions_T: torch.Tensor) -> torch.Tensor:
        self.num_tokens_seen.append(len(input_ids_T))
        if get_forward_context().attention is None:
            return torch.zeros(len(input_ids_T), 1)
        by_layer = [layer.contexts(input_ids_T, positions_T) for layer in self.attention_layers]
        assert all(contexts == by_layer[0] for contexts in by_layer)
        hidden = torch.tensor([[float(expected_hash(context))] for context in by_layer[0]])
        hidden[input_ids_T == self.poisoned] = torch.nan
        return hidden

    def compute_logits(self, hidden_RE: torch.Tensor) -> torch.Tensor:
        self.num_logits_rows.append(len(hidden_RE))
        peaks = hidden_RE.nan_to_num().long() % (VOCAB - 1)
        logits = -((torch.arange(VOCAB) - peaks) % VOCAB).float() / 8
        return logits + hidden_RE * 0
