"""Ranks of this process, a thread each, that meet as ranks of several processes do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from corefw.config.rank_grid import RankGrid
from corefw.plugin_system.manager import PluginManager
from corefw.runtime.distributed.groups import RankGroups
from corefw.runtime.distributed.rendezvous import LocalMeeting

TIMEOUT_S = 30.0


def join(grid: RankGrid, rank: int, address: str, *, timeout_s: float = TIMEOUT_S, ordered: bool = True) -> RankGroups:
    return RankGroups.join(
        grid,
        grid.place(rank),
        plugins=PluginManager.discover(""),
        communicator="gloo",
        address=address,
        device=torch.device("cpu"),
        timeout_s=timeout_s,
        batch_invariant=ordered,
    )


def on_each_rank(grid: RankGrid, work: Callable[[RankGroups], Any], **options: Any) -> list[Any]:
    """What ``work`` gives on each rank, in their order."""
    with LocalMeeting() as meeting, ThreadPoolExecutor(grid.world_size) as pool:

        def one(rank: int) -> Any:
            groups = join(grid, rank, meeting.address, **options)
            try:
                return work(groups)
            finally:
                groups.close()

        return list(pool.map(one, range(grid.world_size)))
