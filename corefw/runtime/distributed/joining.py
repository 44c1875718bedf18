"""How a rank of an engine joins the others: its place, its device, the communicator that fits it."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

from corefw.interfaces.platform import DeviceRuntime
from corefw.plugin_system.making import made_by_plugin, whose
from corefw.plugin_system.selection import select
from corefw.plugin_system.starting import created
from corefw.runtime.distributed.groups import RankGroups

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.interfaces.platform import Platform
    from corefw.plugin_system.manager import PluginManager

__all__ = ["JOIN_TIMEOUT_S", "join_ranks"]

# Ranks start together, and load models from the same disk.
JOIN_TIMEOUT_S = 300.0


def join_ranks(
    config: EngineConfig, plugins: PluginManager, rank: int, address: str, *, timeout_s: float = JOIN_TIMEOUT_S
) -> RankGroups:
    """Meet the other ranks of this replica.

    Args:
        config: the engine's.
        plugins: this process's, general ones loaded.
        rank: this one's, among the replica's.
        address: where to meet: see ``open_store``.
        timeout_s: how long others may keep this rank waiting.

    Raises:
        ConfigError: no communicator moves tensors of this platform's devices.
        EngineStartError: others didn't come.
    """
    grid = dataclasses.replace(config.parallel.grid, data=1, external=1)
    if grid.world_size == 1:
        return RankGroups.alone()
    from corefw.models.build import is_batch_invariant

    platform: Platform = created(plugins, "platform_plugins", config.platform)
    owner = whose(plugins, "platform_plugins", config.platform)
    runtime = made_by_plugin(owner, DeviceRuntime, platform.runtime, rank)
    return RankGroups.join(
        grid,
        grid.place(rank),
        plugins=plugins,
        communicator=_communicator(plugins, runtime.device.type),
        address=address,
        device=runtime.device,
        timeout_s=timeout_s,
        batch_invariant=is_batch_invariant(config),
    )


def _communicator(plugins: PluginManager, device_type: str) -> str:
    """The first that moves tensors of such a device, installed ones before built-in ones."""
    loaded = sorted(plugins.load_all("communicators"), key=lambda plugin: plugin.builtin)
    candidates = [(plugin.name, partial(plugin.value.unavailable_reason, device_type)) for plugin in loaded]
    return select("communicator", candidates).chosen
