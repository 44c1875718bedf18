"""Room for ranks in the cluster: a bundle each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import ray
from ray.util import placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup

from corefw.errors import ConfigError, EngineStartError
from corefw.sdk.plugins import get_logger

__all__ = ["reserve", "resources_of"]

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
    _check_there_is_enough(wanted, num_ranks)
    group: PlacementGroup = placement_group([dict(wanted)] * num_ranks, strategy="PACK")
    deadline = time.monotonic() + timeout_s
    while not group.wait(min(_PATIENCE_S, max(0.1, deadline - time.monotonic()))):
        if time.monotonic() >= deadline:
            remove_placement_group(group)
            raise EngineStartError(
                f"Ray had no room for {_told(wanted, num_ranks)} in {timeout_s:g} s: free are {_amounts(_free())}; "
                "`ray status` shows who holds the rest"
            )
        _log.info("waiting for %s in the Ray cluster; free are %s", _told(wanted, num_ranks), _amounts(_free()))
    return group


def _check_there_is_enough(wanted: Mapping[str, float], num_ranks: int) -> None:
    nodes = [node for node in _ray.nodes() if node["Alive"]]
    for name, amount in wanted.items():
        fitting = sum(int(node["Resources"].get(name, 0) // amount) for node in nodes)
        if fitting < num_ranks:
            held = Counter({node["NodeManagerAddress"]: node["Resources"].get(name, 0) for node in nodes})
            listed = ", ".join(f"{host} has {count:g}" for host, count in sorted(held.items()))
            raise ConfigError(
                f"{num_ranks} ranks need {_told(wanted, num_ranks)}, and the Ray cluster has fewer: {listed}. Start "
                "more nodes, give those that run more with `ray start --num-cpus/--num-gpus`, or use fewer ranks"
            )


def _free() -> dict[str, Any]:
    return {name: amount for name, amount in _ray.available_resources().items() if name.isupper()}


def _told(wanted: Mapping[str, float], num_ranks: int) -> str:
    return " and ".join(f"{num_ranks} times {amount:g} {name}" for name, amount in wanted.items())


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(resources.items())) or "none"
