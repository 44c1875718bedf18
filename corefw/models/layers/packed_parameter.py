"""A weight that may be held in blocks: it keeps what the quantisation method made of each piece until all are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from corefw.models.layers.blocks import BlockTensor
from corefw.models.layers.parameter import Parameter, Piece, place, whole_shape
from corefw.models.layers.sharding import Split
from corefw.models.ops.block_layout import joined_layout
from corefw.observability.logging import get_logger

if TYPE_CHECKING:
    from corefw.models.layers.context import BuildContext
    from corefw.models.ops.binder import OpBinder
    from corefw.models.quantization import QuantizationPlan

__all__ = ["PackedParameter", "PackedWeight", "weight_parameter"]

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A whole weight in blocks.

    Attributes:
        bytes: its rows one after the other, uint8.
        layout: which rows are of which block type.
        prepared: what op providers made of it, by their name.
    """

    bytes: torch.Tensor
    layout: str
    prepared: dict[str, torch.Tensor] = field(default_factory=dict)

    def prepare(self, op: str, binder: OpBinder, shape: Mapping[str, int]) -> torch.Tensor:
        """As the provider of the bound op likes it best; made once for all layers that share the weight."""
        provider = binder.provider_of(op, layout=self.layout, **shape)
        if provider not in self.prepared:
            self.prepared[provider] = binder.prepare_weight(op, self.bytes, layout=self.layout, **shape)
        return self.prepared[provider]


class PackedParameter(Parameter):
    """A weight [out, in] whose pieces may come, or be kept, in blocks. Holds no values itself.

    Attributes:
        layer_name: its module in the model, known when the model is whole.
    """

    layer_name: str
    _plan: QuantizationPlan
    _target: tuple[torch.dtype, torch.device]
    _parts: dict[str, torch.Tensor | BlockTensor]
    _settled: torch.Tensor | PackedWeight | None

    def __new__(cls, pieces: Mapping[str, Piece], build: BuildContext) -> PackedParameter:
        self = super().__new__(cls, pieces, build)
        assert isinstance(self, PackedParameter)
        assert build.quantization is not None, "without a method there is nothing to keep"
        self.layer_name = ""
        self._plan = build.quantization
        self._target = (build.dtype, build.device)
        self._parts = {}
        self._settled = None
        return self

    @staticmethod
    def _allocated(pieces: Mapping[str, Piece]) -> Sequence[int]:
        del pieces
        return (0,)

    def settled(self) -> torch.Tensor | PackedWeight:
        """The loaded weight: in blocks if every piece is, else as a plain tensor."""
        if self._settled is None:
            parts = [self._parts[shard_id] for shard_id in self.pieces]
            blocks = [part for part in parts if isinstance(part, BlockTensor)]
            self._settled = self._joined(blocks) if len(blocks) == len(parts) else self._dense()
            self._parts = {}
        return self._settled

    def _take(self, tensor: torch.Tensor | BlockTensor, piece: Piece, shard_id: str) -> None:
        if piece.dim == 0:
            rows = _rows_of(tensor, piece.split)
            part = self._plan.converter.convert(self.layer_name, rows)
        else:  # rows are rounded whole, so that they are alike on however many ranks
            part = self._own_inputs(self._plan.converter.convert(self.layer_name, tensor), piece)
        if isinstance(part, BlockTensor) and part.type.name in self._plan.types:
            self._parts[shard_id] = part
            return
        plain = part.dequantised() if isinstance(part, BlockTensor) else part
        self._parts[shard_id] = plain.to(self._target[0], copy=True)  # it may be a view of a file that closes

    def _own_inputs(self, tensor: torch.Tensor | BlockTensor, piece: Piece) -> torch.Tensor | BlockTensor:
        split = piece.split
        if isinstance(tensor, BlockTensor):
            part = tensor.narrow(piece.dim, split.start, split.size)
            if part is not None:
                return part
            _log.info(
                "%s: dequantised, since this rank's inputs %d to %d don't end between %s blocks of %d",
                self.layer_name or "a layer",
                split.start,
                split.start + split.size,
                tensor.type.name,
                tensor.type.block_elements,
            )
            tensor = tensor.dequantised()
        return tensor.narrow(piece.dim, split.start, split.size)

    def _joined(self, blocks: Sequence[BlockTensor]) -> PackedWeight:
        rows: list[torch.Tensor] = []
        for piece, block in zip(self.pieces.values(), blocks, strict=True):
            rows.append(block.rows.reshape(-1))
            padding = piece.split.padded_size - piece.split.size if piece.dim == 0 else 0
            if padding:  # blocks of zeros have the scale zero
                rows.append(torch.zeros(padding * block.rows.shape[1], dtype=torch.uint8))
        layout = joined_layout(
            (block.type.name, piece.split.padded_size if piece.dim == 0 else block.shape[0])
            for piece, block in zip(self.pieces.values(), blocks, strict=True)
        )
        return PackedWeight(torch.cat(rows).to(self._target[1]), layout)

    def _dense(self) -> torch.Tensor:
        dtype, device = self._target
        weight = torch.empty(whole_shape(self.pieces), dtype=dtype, device=device)
        for shard_id, piece in self.pieces.items():
            part = self._parts.pop(shard_id)
            place(weight, piece, part.dequantised() if isinstance(part, BlockTensor) else part)
        return weight


def _rows_of(tensor: torch.Tensor | BlockTensor, split: Split) -> torch.Tensor | BlockTensor:
    rows = tensor.narrow(0, split.start, split.size)
    assert rows is not None, "between rows a matrix may always be cut"
    return rows


def weight_parameter(pieces: Mapping[str, Piece], build: BuildContext) -> Parameter:
    """The weight of a layer that has a kernel for weights in blocks."""
    return Parameter(pieces, build) if build.quantization is None else PackedParameter(pieces, build)
