"""A rank's device, as the platform makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corefw.interfaces.platform import DeviceRuntime
from corefw.plugin_system.making import made_by_plugin, whose
from corefw.plugin_system.starting import created

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.interfaces.platform import Platform
    from corefw.plugin_system.manager import PluginManager

__all__ = ["make_device_runtime"]

_GROUP = "platform_plugins"


def make_device_runtime(config: EngineConfig, plugins: PluginManager, local_rank: int) -> DeviceRuntime:
    """The device half of the platform. Once a worker.

    Args:
        config: the engine's.
        plugins: the engine's.
        local_rank: which of this machine's devices is the worker's.
    """
    platform: Platform = created(plugins, _GROUP, config.platform)
    return made_by_plugin(whose(plugins, _GROUP, config.platform), DeviceRuntime, platform.runtime, local_rank)
