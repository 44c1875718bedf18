"""How the model is spread over ranks, and engines over replicas."""

from __future__ import annotations

from dataclasses import dataclass

from corefw.config.options import Section, option
from corefw.config.rank_grid import RankGrid

__all__ = ["LOCAL_LAUNCHER", "ParallelConfig"]

LOCAL_LAUNCHER = "mp"
"""Starts engine cores as children of the front end."""

_MAX_RANKS = 65536


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig(Section):
    """How the model is spread over ranks, and engines over replicas.

    Attributes:
        lockstep: each step of an engine is a step of all, whatever the model needs.

    A core's own has ``data_parallel_size`` 1, and where there are several engines its number in ``data_parallel_rank``.
    """

    distributed_executor_backend: str | None = option(
        None, "executor by name or module:Class; default: uni for one rank, mp for several"
    )
    tensor_parallel_size: int = option(1, "ranks that share every layer", low=1, high=_MAX_RANKS)
    pipeline_parallel_size: int = option(1, "ranks that each hold some of the layers", low=1, high=_MAX_RANKS)
    data_parallel_size: int = option(1, "engines, each with the whole model, that share the requests", low=1, high=4096)
    data_parallel_backend: str | None = option(
        None, "what starts engine cores, by name or module:Class; default: mp, as processes on this machine"
    )
    data_parallel_rank: int | None = option(
        None,
        "which of them this server is, from 0, where something else shares the requests out; default: all of them",
        high=4095,
    )
    prefill_context_parallel_size: int = option(1, "ranks that share a prompt's positions", low=1, high=_MAX_RANKS)
    decode_context_parallel_size: int = option(
        1, "ranks inside a tensor-parallel group that share a sequence's KV cache", low=1, high=_MAX_RANKS
    )

    communicator: str | None = option(
        None, "communicator that moves tensors among ranks, by name; default: the platform's"
    )
    distributed_timeout_seconds: float = option(
        600, "how long ranks wait for one another, when they meet and in every operation", low=1, high=86400
    )

    lockstep: bool = False

    @property
    def grid(self) -> RankGrid:
        """The ranks of all replicas."""
        return RankGrid(
            tensor=self.tensor_parallel_size,
            pipeline=self.pipeline_parallel_size,
            data=self.data_parallel_size,
            prefill_context=self.prefill_context_parallel_size,
            decode_context=self.decode_context_parallel_size,
        )

    @property
    def num_own_engines(self) -> int:
        """Engines that one server starts."""
        return self.data_parallel_size if self.data_parallel_rank is None else 1

    @property
    def executor(self) -> str:
        """Name or ``module:Class`` of the executor."""
        return self.distributed_executor_backend or ("uni" if self.grid.replica_size == 1 else "mp")

    @property
    def core_launcher(self) -> str:
        """Name or ``module:Class`` of the launcher of engine cores."""
        return self.data_parallel_backend or LOCAL_LAUNCHER

    @property
    def has_core_processes(self) -> bool:
        """Whether engine cores can't run in the process of whoever uses them."""
        return self.num_own_engines > 1 or self.data_parallel_backend is not None
