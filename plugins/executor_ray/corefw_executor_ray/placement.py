"""Room for ranks in the cluster: a bundle each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import ray
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from corefw.errors import ConfigError, EngineStartError
from corefw.sdk.plugins import get_logger

__all__ = ["actor_class_in", "nodes_of", "reserve", "reserve_places", "resources_of"]

_log = get_logger("ray")
_ray: Any = ray  # some of its functions have no types

# What Ray calls the devices that torch calls so.
_RESOURCES = {"cpu": "CPU", "cuda": "GPU", "xpu": "GPU"}
_PATIENCE_S = 10.0


def resources_of(device_type: str) -> dict[str, float]:
    """What a rank takes of the cluster."""
    return {_RESOURCES.get(device_type, device_type.upper()): 1}


def reserve(wanted: Mapping[str, float], num_ranks: int, timeout_s: float) -> PlacementGroup:
    """A bundle a rank, on as few nodes as possible.

    Raises:
        ConfigError: the cluster has less than that, even with nothing else running.
        EngineStartError: others hold it, and didn't let it go in time.
    """
    return _reserved(wanted, num_ranks, "ranks", "PACK", timeout_s)


def reserve_places(wanted: Mapping[str, float], num_engines: int, timeout_s: float) -> PlacementGroup:
    """A bundle an engine, on as many nodes as possible; raises as ``reserve`` does."""
    return _reserved(wanted, num_engines, "engines", "SPREAD", timeout_s)


def nodes_of(group: PlacementGroup) -> list[str]:
    """The node of each bundle."""
    placed = placement_group_table(group)["bundles_to_node_id"]
    return [placed[index] for index in range(group.bundle_count)]


def actor_class_in(cls: type, group: PlacementGroup, bundle: int, wanted: Mapping[str, float], **options: Any) -> Any:
    """The actor class, to be made in a bundle, of which it takes all. It doesn't restart."""
    amounts = dict(wanted)
    num_cpus, num_gpus, memory = (amounts.pop(name, 0) for name in ("CPU", "GPU", "memory"))
    remote: Any = ray.remote  # its types know not all of its options
    return remote(max_restarts=0, **options)(cls).options(
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        memory=memory or None,
        resources=amounts or None,
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle),
    )


def _reserved(wanted: Mapping[str, float], number: int, what: str, strategy: str, timeout_s: float) -> PlacementGroup:
    _check_there_is_enough(wanted, number, what)
    group: PlacementGroup = placement_group([dict(wanted)] * number, strategy=strategy)
    deadline = time.monotonic() + timeout_s
    while not group.wait(min(_PATIENCE_S, max(0.1, deadline - time.monotonic()))):
        if time.monotonic() >= deadline:
            remove_placement_group(group)
            raise EngineStartError(
                f"Ray had no room for {_told(wanted, number)} in {timeout_s:g} s: free are {_amounts(_free())}; "
                "`ray status` shows who holds the rest"
            )
        _log.info("waiting for %s in the Ray cluster; free are %s", _told(wanted, number), _amounts(_free()))
    return group


def _check_there_is_enough(wanted: Mapping[str, float], number: int, what: str) -> None:
    nodes = [node for node in _ray.nodes() if node["Alive"]]
    for name, amount in wanted.items():
        fitting = sum(int(node["Resources"].get(name, 0) // amount) for node in nodes)
        if fitting < number:
            held = Counter({node["NodeManagerAddress"]: node["Resources"].get(name, 0) for node in nodes})
            listed = ", ".join(f"{host} has {count:g}" for host, count in sorted(held.items()))
            raise ConfigError(
                f"{number} {what} need {_told(wanted, number)}, and the Ray cluster has fewer: {listed}. Start "
                f"more nodes, give those that run more with `ray start --num-cpus/--num-gpus`, or use fewer {what}"
            )


def _free() -> dict[str, Any]:
    return {name: amount for name, amount in _ray.available_resources().items() if name.isupper()}


def _told(wanted: Mapping[str, float], number: int) -> str:
    return " and ".join(f"{number} times {amount:g} {name}" for name, amount in wanted.items())


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(resources.items())) or "none"
