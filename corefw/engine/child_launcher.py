"""The launcher of cores on this machine: children of this process, which share its CPUs and devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from corefw.engine.core_child import CoreChild
from corefw.interfaces.core_launcher import CoreLauncher

if TYPE_CHECKING:
    from corefw.config.device_ids import DeviceIds
    from corefw.config.engine_config import EngineConfig
    from corefw.interfaces.platform import Platform
    from corefw.plugin_system.manager import PluginManager

__all__ = ["ChildLauncher"]


class ChildLauncher(CoreLauncher):
    """One core gets all that this process has; several get a part each.

    Raises:
        ConfigError: there are fewer devices than they need.
    """

    name: ClassVar[str] = "mp"

    def __init__(self, config: EngineConfig, plugins: PluginManager) -> None:
        num_engines = config.parallel.num_own_engines
        self._environments: list[dict[str, str] | None] = [None]
        if num_engines > 1:
            devices = _devices(config, plugins)
            self._environments = [_environment(config, devices, index) for index in range(num_engines)]

    def launch(self, index: int, board_fd: int) -> CoreChild:
        return CoreChild.spawn(board_fd, environment=self._environments[index])


def _devices(config: EngineConfig, plugins: PluginManager) -> DeviceIds | None:
    from corefw.plugin_system.starting import created

    platform: Platform = created(plugins, "platform_plugins", config.platform)
    return platform.device_ids()


def _environment(config: EngineConfig, devices: DeviceIds | None, index: int) -> dict[str, str]:
    from corefw.config.child_environment import child_environment

    size = config.parallel.grid.replica_size
    own_devices = None if devices is None else range(index * size, (index + 1) * size)
    return child_environment(index, config.parallel.num_own_engines, devices=devices, logical_ids=own_devices)
