"""The launcher of engine cores on the nodes of a Ray cluster: an actor each, in a placement group for all of them."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from corefw.interfaces.core_launcher import CoreLauncher
from corefw.sdk.plugins import get_logger
from corefw_executor_ray.environment import passed_on

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

    from corefw.interfaces.platform import Platform
    from corefw.sdk.config import EngineConfig
    from corefw.sdk.plugins import PluginManager
    from corefw_executor_ray.far_core import FarCore

__all__ = ["RayCoreLauncher"]

_log = get_logger("ray")

# An executor that places its ranks itself leaves nothing to compute at the core's own place.
_PLACES_ITSELF = "ray"


class RayCoreLauncher(CoreLauncher):
    """Each core with its ranks takes one place, on one node; places are spread over nodes. All of it ends with this
    process's connection to the cluster."""

    name: ClassVar[str] = "ray"

    def __init__(self, config: EngineConfig, plugins: PluginManager) -> None:
        os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # else lines of two cores that differ by a number count as one
        from corefw_executor_ray.cluster import connect, own_address  # ray takes seconds to import
        from corefw_executor_ray.placement import reserve_places

        self._placement: PlacementGroup | None = None
        self._own_connection = connect()
        try:
            self._host = own_address()
            self._wanted = _wanted(config, plugins)
            self._first = config.parallel.data_parallel_rank or 0
            self._num_engines = config.parallel.num_own_engines
            timeout_s = config.parallel.distributed_timeout_seconds
            self._placement = reserve_places(self._wanted, self._num_engines, timeout_s)
        except BaseException:
            self.close()
            raise

    def launch(self, index: int, board_fd: int) -> FarCore:
        from corefw_executor_ray.far_core import FarCore

        name = f"engine core {self._first + index}"
        return FarCore(name, partial(self._make_actor, index), board_fd, self._host)

    def close(self) -> None:
        import ray
        from ray.util import remove_placement_group

        if self._placement is not None:
            remove_placement_group(self._placement)
        self._placement = None
        if self._own_connection:
            ray.shutdown()
        self._own_connection = False

    def _make_actor(self, index: int) -> Any:
        from corefw_executor_ray.core_actor import CoreActor
        from corefw_executor_ray.placement import actor_class_in, nodes_of

        assert self._placement is not None
        nodes = nodes_of(self._placement)
        neighbours = [each for each, node in enumerate(nodes) if node == nodes[index]]
        remote = actor_class_in(CoreActor, self._placement, index, self._wanted)
        return remote.remote(passed_on(), neighbours.index(index), len(neighbours))


def _wanted(config: EngineConfig, plugins: PluginManager) -> dict[str, float]:
    """What one core takes: a device or CPU for each of its ranks."""
    from corefw_executor_ray.placement import resources_of

    if config.parallel.executor == _PLACES_ITSELF:
        return {"memory": 1}  # a place needs something
    platform: type[Platform] = plugins.get("platform_plugins", config.platform)
    size = config.parallel.grid.replica_size
    return {name: amount * size for name, amount in resources_of(platform.device_type).items()}
