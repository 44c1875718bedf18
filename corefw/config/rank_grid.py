"""The grid of ranks: who shares layers, who holds which part of them, who is a replica.

``external DP x DP x PP x prefill-context x TP``, the last one varying fastest; decode-context groups lie
inside TP groups. One engine core drives the ranks of one replica (PP x prefill-context x TP); replicas are engines
of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from corefw.errors import ConfigError

__all__ = ["Axis", "RankGrid", "RankPlace"]


class Axis(StrEnum):
    """What the members of a group have of one another."""

    TENSOR = "tensor"
    DECODE_CONTEXT = "decode context"
    PREFILL_CONTEXT = "prefill context"
    PIPELINE = "pipeline"
    DATA = "data"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    """Where one rank stands in the grid; every field counts from 0."""

    rank: int
    external: int
    data: int
    pipeline: int
    prefill_context: int
    tensor: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RankGrid:
    """Sizes of the axes, each at least 1.

    Attributes:
        decode_context: ranks of a decode-context group; divides ``tensor``.

    Raises:
        ConfigError: a size isn't a positive number, or the decode-context size doesn't divide the tensor size.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    prefill_context: int = 1
    decode_context: int = 1
    external: int = 1

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 1:
                raise ConfigError(f"the {name} size of the rank grid is {getattr(self, name)}; it must be at least 1")
        if self.tensor % self.decode_context:
            raise ConfigError(
                f"--decode-context-parallel-size {self.decode_context} doesn't divide --tensor-parallel-size "
                f"{self.tensor}; its groups lie inside tensor-parallel ones"
            )

    @property
    def replica_size(self) -> int:
        """Ranks of one engine."""
        return self.pipeline * self.prefill_context * self.tensor

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.external * self.data * self.replica_size

    @property
    def replica(self) -> RankGrid:
        """The ranks of one engine alone, numbered from 0."""
        return replace(self, data=1, external=1)

    @property
    def output_rank(self) -> int:
        """The rank of the first replica that tells what a step gave: the first one of the last stage."""
        return self.replica_size - self.replica_size // self.pipeline

    def place(self, rank: int) -> RankPlace:
        """Where a rank stands.

        Raises:
            ConfigError: there is no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise ConfigError(f"there is no rank {rank} among {self.world_size}")
        rest, tensor = divmod(rank, self.tensor)
        rest, prefill_context = divmod(rest, self.prefill_context)
        rest, pipeline = divmod(rest, self.pipeline)
        external, data = divmod(rest, self.data)
        return RankPlace(
            rank=rank, external=external, data=data, pipeline=pipeline, prefill_context=prefill_context, tensor=tensor
        )

    def groups(self, axis: Axis) -> tuple[tuple[int, ...], ...]:
        """Every group along an axis, ranks in order; each rank is in exactly one of them."""
        members: dict[Sequence[int], list[int]] = {}
        for rank in range(self.world_size):
            members.setdefault(self._others(self.place(rank), axis), []).append(rank)
        return tuple(tuple(ranks) for ranks in members.values())

    def group_of(self, rank: int, axis: Axis) -> tuple[int, ...]:
        """The group along an axis that a rank is in."""
        return next(ranks for ranks in self.groups(axis) if rank in ranks)

    def _others(self, place: RankPlace, axis: Axis) -> Sequence[int]:
        """What the members of the rank's group have in common."""
        tensor = place.tensor // self.decode_context if axis is Axis.DECODE_CONTEXT else place.tensor
        common = {
            Axis.DATA: place.data,
            Axis.PIPELINE: place.pipeline,
            Axis.PREFILL_CONTEXT: place.prefill_context,
            Axis.TENSOR: tensor,
        }
        common.pop(axis, None)
        return (place.external, *common.values())
