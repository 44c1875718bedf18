"""The groups that a rank is in: one along each axis of the grid, and one of all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from corefw.config.rank_grid import Axis, RankGrid, RankPlace
from corefw.errors import EngineStartError
from corefw.interfaces.communicator import Communicator, CommunicatorGroup
from corefw.models.layers.context import TensorParallel
from corefw.plugin_system.selection import select
from corefw.plugin_system.starting import starting
from corefw.runtime.distributed.pipeline_stage import PipelineStage
from corefw.runtime.distributed.rank_group import PlainGroup, RankGroup
from corefw.runtime.distributed.rendezvous import LOOPBACK, is_local, open_store, own_host

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store

    from corefw.config.engine_config import EngineConfig
    from corefw.plugin_system.manager import PluginManager

__all__ = ["AxisGroup", "RankGroups", "communicator_of"]

_GROUP = "communicators"
_HOST = "gloo"  # for what passes through host memory, whatever the device
_ALL = "all"


@dataclass(frozen=True, slots=True)
class AxisGroup:
    """The ranks along one axis, twice.

    Attributes:
        device: for tensors on the device.
        cpu: for those in host memory; the same one where that is the device.
    """

    device: RankGroup
    cpu: RankGroup

    def close(self) -> None:
        """What may stand on the other goes first."""
        self.device.close()
        self.cpu.close()


def communicator_of(config: EngineConfig, plugins: PluginManager) -> str:
    """Name of the communicator that moves tensors among an engine's ranks: the one named, else the platform's."""
    named = config.parallel.communicator
    return named or str(plugins.get("platform_plugins", config.platform).communicator)


@dataclass(frozen=True, slots=True)
class RankGroups:
    """What one rank does together with others.

    Attributes:
        place: where it stands in the grid.
        tensor: for the layers.
        pipeline: for handing on what the layers give.
        world: plain data among all ranks.
        axes: the groups that have more than one member.
        local_rank: which of this machine's devices is this rank's.
    """

    place: RankPlace
    tensor: TensorParallel
    pipeline: PipelineStage
    world: PlainGroup
    axes: dict[Axis, AxisGroup]
    local_rank: int = 0

    @classmethod
    def alone(cls) -> RankGroups:
        """The groups of a rank that has no others. Imports no torch."""
        return cls(RankGrid().place(0), TensorParallel(), PipelineStage(), PlainGroup(), {})

    @classmethod
    def join(
        cls,
        grid: RankGrid,
        place: RankPlace,
        *,
        plugins: PluginManager,
        communicator: str,
        address: str,
        device: torch.device,
        timeout_s: float,
        batch_invariant: bool,
        local_rank: int | None = None,
        on_one_machine: bool | None = None,
    ) -> RankGroups:
        """Meet the other ranks of the grid; every one of them calls this at about the same time, and waits for all.

        Args:
            grid: of all the ranks that meet: a replica's, for an engine that shares nothing with others.
            place: this rank's, in that grid.
            plugins: has the communicators.
            communicator: name of the one that moves the device's tensors.
            address: where to meet: see ``open_store``.
            device: this rank's.
            timeout_s: how long others may keep this rank waiting, now and in each operation.
            batch_invariant: sum in the order of ranks, whatever the batch.
            local_rank: which of this machine's devices is this rank's; default: the one of its own number.
            on_one_machine: whether all ranks are; default: what the address says.

        Raises:
            ConfigError: the communicator can't move tensors of this device.
            EngineStartError: others didn't come; names them.
        """
        if grid.world_size == 1:
            return cls.alone()
        classes = _classes(plugins, communicator, device)
        store = open_store(address, rank=place.rank, world_size=grid.world_size, timeout_s=timeout_s)
        near = is_local(address) if on_one_machine is None else on_one_machine
        host = LOOPBACK if near else own_host(address)
        local = place.rank if local_rank is None else local_rank
        meeting = _Meeting(place, local, device, store, timeout_s, near, host)
        meeting.await_all(range(grid.world_size), address)
        with starting(plugins, _GROUP, communicator):
            return meeting.groups(grid, classes, batch_invariant)

    @classmethod
    def of_engine(
        cls,
        config: EngineConfig,
        plugins: PluginManager,
        *,
        rank: int,
        address: str,
        device: torch.device,
        local_rank: int | None = None,
        on_one_machine: bool | None = None,
    ) -> RankGroups:
        """Meet the other ranks of an engine, as its configuration has it; see ``join``.

        Args:
            config: the engine's.
            plugins: the engine's.
            rank: this one's, among those of the engine.
            address: where they meet.
            device: this rank's.
            local_rank: which of this machine's devices that is; default: the one of the rank's number.
            on_one_machine: whether all ranks are; default: what the address says.
        """
        from corefw.models.build import is_batch_invariant  # brings torch

        grid = config.parallel.grid.replica
        return cls.join(
            grid,
            grid.place(rank),
            plugins=plugins,
            communicator=communicator_of(config, plugins),
            address=address,
            device=device,
            timeout_s=config.parallel.distributed_timeout_seconds,
            batch_invariant=is_batch_invariant(config),
            local_rank=local_rank,
            on_one_machine=on_one_machine,
        )

    def close(self) -> None:
        """Leave the groups; waits for nobody. May be called twice."""
        for group in self.axes.values():
            group.close()
        self.world.close()


@dataclass(frozen=True, slots=True)
class _Meeting:
    """One rank at the place where all meet."""

    place: RankPlace
    local_rank: int
    device: torch.device
    store: Store
    timeout_s: float
    on_one_machine: bool
    host: str

    def await_all(self, ranks: range, address: str) -> None:
        """Raises EngineStartError with the ranks that didn't come."""
        from datetime import timedelta

        self.store.set(f"here/{self.place.rank}", "")
        try:
            self.store.wait([f"here/{rank}" for rank in ranks], timedelta(seconds=self.timeout_s))
        except RuntimeError as error:
            missing = ", ".join(str(rank) for rank in ranks if not self.store.check([f"here/{rank}"]))
            raise EngineStartError(
                f"rank {self.place.rank} waited {self.timeout_s:g} s at {address} for ranks that didn't come: {missing}"
            ) from error

    def groups(
        self, grid: RankGrid, classes: tuple[type[Communicator], type[Communicator]], ordered: bool
    ) -> RankGroups:
        import torch

        host = torch.device("cpu")
        device_class, host_class = classes
        world = self._join(_ALL, tuple(range(grid.world_size)), host, host_class)
        axes = {}
        for axis in Axis:
            ranks = grid.group_of(self.place.rank, axis)
            if len(ranks) > 1:
                cpu = self._join(axis, ranks, host, host_class)
                same = device_class is host_class
                axes[axis] = AxisGroup(cpu if same else self._join(axis, ranks, self.device, device_class), cpu)
        pipeline = axes.get(Axis.PIPELINE)
        everybody = PlainGroup(world)
        everybody.barrier()  # whoever left now would break up groups that others are still making
        stage = PipelineStage(pipeline.device, pipeline.cpu, self.device) if pipeline else PipelineStage()
        return RankGroups(self.place, _tensor_parallel(axes, ordered), stage, everybody, axes, self.local_rank)

    def _join(
        self, axis: str, ranks: tuple[int, ...], device: torch.device, communicator: type[Communicator]
    ) -> RankGroup:
        from torch.distributed import PrefixStore

        group = CommunicatorGroup(
            axis=str(axis),
            ranks=ranks,
            rank=ranks.index(self.place.rank),
            device=device,
            store=PrefixStore(f"{axis}/{ranks[0]}/{communicator.name}", self.store),
            timeout_s=self.timeout_s,
            on_one_machine=self.on_one_machine,
            host=self.host,
        )
        return RankGroup(communicator, group)


def _classes(plugins: PluginManager, name: str, device: torch.device) -> tuple[type[Communicator], type[Communicator]]:
    found: type[Communicator] = plugins.get(_GROUP, name)
    with starting(plugins, _GROUP, name):
        selection = select("communicator", [(name, lambda: found.unavailable_reason(device.type))], named=name)
    plugins.record(selection)
    host: type[Communicator] = found if device.type == "cpu" else plugins.get(_GROUP, _HOST)
    return found, host


def _tensor_parallel(axes: dict[Axis, AxisGroup], ordered: bool) -> TensorParallel:
    found = axes.get(Axis.TENSOR)
    if found is None:
        return TensorParallel()
    group = found.device
    reduce = group.ordered_all_reduce if ordered else group.all_reduce
    return TensorParallel(group.rank, group.size, all_reduce=reduce, all_gather=group.all_gather)
