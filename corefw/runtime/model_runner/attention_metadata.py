"""From a step's tensors to what the attention layers read: metadata and slots, by layer name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corefw.interfaces.attention import AttentionBackend, AttentionBatch, AttentionLayerSpec, AttentionMetadata
from corefw.models.layers.forward_context import ForwardContext
from corefw.runtime.model_runner.input_preparation import StepInputs

if TYPE_CHECKING:
    import torch

__all__ = ["AttentionMetadataAssembly"]


class AttentionMetadataAssembly:
    """One builder a KV-cache group; its layers share what it builds.

    Args:
        backend: the chosen one.
        groups: the layers of each KV-cache group; of some, other pipeline stages may have them all.
        block_sizes: tokens a block, a group.
        max_num_seqs: requests of a step at most.
    """

    def __init__(
        self,
        backend: type[AttentionBackend],
        groups: Sequence[Sequence[AttentionLayerSpec]],
        block_sizes: Sequence[int],
        max_num_seqs: int,
    ) -> None:
        self._groups = [
            (index, backend.builder(layers, block_size, max_num_seqs), block_size, [layer.name for layer in layers])
            for index, (layers, block_size) in enumerate(zip(groups, block_sizes, strict=True))
            if layers
        ]

    def assemble(self, inputs: StepInputs, *, for_capture: bool = False) -> ForwardContext:
        """The step's context, valid until the next one is assembled.

        Args:
            inputs: the step, padded where it is recorded or replayed.
            for_capture: the step is recorded.
        """
        attention: dict[str, AttentionMetadata] = {}
        slots: dict[str, torch.Tensor] = {}
        for index, builder, block_size, names in self._groups:
            batch = AttentionBatch(
                num_tokens=inputs.num_tokens,
                query_starts=inputs.query_starts,
                seq_lens=inputs.seq_lens,
                block_table=inputs.block_tables[index],
                slot_mapping=inputs.slot_mappings[index],
                block_size=block_size,
            )
            metadata = builder.build_for_capture(batch) if for_capture else builder.build(batch)
            attention |= dict.fromkeys(names, metadata)
            slots |= dict.fromkeys(names, inputs.slot_mappings[index])
        return ForwardContext(attention, slots)
