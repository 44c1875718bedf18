"""A parameter that knows how to load its shard. The loader knows no model, the model knows no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from corefw.errors import ModelFormatError
from corefw.models.layers.blocks import BlockTensor
from corefw.models.layers.context import BuildContext
from corefw.models.layers.sharding import Split

__all__ = ["Parameter", "Piece", "place", "whole", "whole_shape"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One checkpoint tensor's place in a parameter.

    Attributes:
        shape: of the tensor in the checkpoint.
        dim: along which it is cut.
        split: the part that this rank takes.
        offset: where that part goes in the parameter, along ``dim``.
    """

    shape: tuple[int, ...]
    dim: int
    split: Split
    offset: int = 0


def whole(*shape: int) -> dict[str, Piece]:
    """A tensor that every rank holds in full."""
    return {"": Piece(shape, 0, Split(0, shape[0], shape[0], shape[0]))}


def whole_shape(pieces: Mapping[str, Piece]) -> list[int]:
    """Of this rank's parameter made of pieces."""
    first = next(iter(pieces.values()))
    shape = list(first.shape)
    shape[first.dim] = sum(piece.split.padded_size for piece in pieces.values())
    return shape


def place(target: torch.Tensor, piece: Piece, part: torch.Tensor) -> None:
    """Copy this rank's part of a piece to where it goes in a parameter; what it is short of is zero."""
    split = piece.split
    target = target.narrow(piece.dim, piece.offset, split.padded_size)
    target.narrow(piece.dim, 0, split.size).copy_(part)
    target.narrow(piece.dim, split.size, split.padded_size - split.size).zero_()


class Parameter(nn.Parameter):
    """An uninitialised parameter made of pieces, by shard id (``""`` where there is one piece)."""

    pieces: Mapping[str, Piece]
    _loaded: set[str]

    def __new__(cls, pieces: Mapping[str, Piece], build: BuildContext) -> Parameter:
        shape = cls._allocated(pieces)
        data = torch.empty(shape if build.holds_weights else (), dtype=build.dtype, device=build.device).expand(shape)
        self: Parameter = super().__new__(cls, data, requires_grad=False)
        self.pieces = pieces
        self._loaded = set()
        return self

    def __init__(self, pieces: Mapping[str, Piece], build: BuildContext) -> None:
        """All is done in ``__new__``, as torch wants it."""

    @staticmethod
    def _allocated(pieces: Mapping[str, Piece]) -> Sequence[int]:
        return whole_shape(pieces)

    def load(self, tensor: torch.Tensor | BlockTensor, shard_id: str = "") -> None:
        """Take this rank's part of a checkpoint tensor, converting the dtype.

        Without a shard id, a parameter of several pieces takes them joined, in its order.

        Raises:
            ModelFormatError: the shard is unknown or loaded already, or the tensor has another shape.
        """
        if not shard_id and "" not in self.pieces:
            self._load_joined(tensor)
            return
        piece = self.pieces.get(shard_id)
        if piece is None:
            raise ModelFormatError(f"has no shard {shard_id!r}, only {sorted(self.pieces)}")
        if shard_id in self._loaded:
            raise ModelFormatError("is in the checkpoint twice")
        if tuple(tensor.shape) != piece.shape:
            raise ModelFormatError(f"has shape {list(tensor.shape)}, the configuration asks for {list(piece.shape)}")
        self._take(tensor, piece, shard_id)
        self._loaded.add(shard_id)

    def _take(self, tensor: torch.Tensor | BlockTensor, piece: Piece, shard_id: str) -> None:
        del shard_id
        if isinstance(tensor, BlockTensor):
            tensor = tensor.dequantised()
        place(self.data, piece, tensor.narrow(piece.dim, piece.split.start, piece.split.size))

    def _load_joined(self, tensor: torch.Tensor | BlockTensor) -> None:
        first = next(iter(self.pieces.values()))
        sizes = [piece.shape[piece.dim] for piece in self.pieces.values()]
        shape = list(first.shape)
        shape[first.dim] = sum(sizes)
        if list(tensor.shape) != shape:
            raise ModelFormatError(f"has shape {list(tensor.shape)}, the configuration asks for {shape}")
        for shard_id, part in zip(self.pieces, tensor.split(sizes, first.dim), strict=True):
            self.load(part, shard_id)

    def missing(self) -> tuple[str, ...]:
        """Shards that nothing was loaded into yet."""
        return tuple(shard_id for shard_id in self.pieces if shard_id not in self._loaded)
