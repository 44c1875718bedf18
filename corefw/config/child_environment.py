"""The environment of a child that has a part of this process's CPUs and devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from corefw import env
from corefw.host import Host

if TYPE_CHECKING:
    from corefw.config.device_ids import DeviceIds

__all__ = ["child_environment"]


def child_environment(
    local_rank: int,
    num_local_ranks: int,
    *,
    devices: DeviceIds | None = None,
    logical_ids: Iterable[int] | None = None,
    path: Sequence[str] = (),
    host: Host | None = None,
) -> dict[str, str]:
    """What one of the children that share this process's CPUs and devices finds in its environment.

    Its share of the CPUs is in ``COREFW_CPUS``, which says how many threads compute and is divided again by its own
    children; nothing is pinned. What the user said in ``OMP_NUM_THREADS`` goes to every child as it is.

    Args:
        local_rank: the child's place among those on this machine.
        num_local_ranks: how many there are.
        devices: this process's; None where the platform doesn't number devices.
        logical_ids: of the devices that the child shall see; default: all of this process's, so that ranks of one
            engine can reach each other's memory, and each takes the one that its local rank says.
        path: folders where the child looks for modules first.
        host: stands in for this machine.

    Raises:
        ConfigError: there are fewer devices.
    """
    share = (host or Host()).share(local_rank, num_local_ranks)
    own = {"COREFW_CPUS": ",".join(map(str, share.cpus))}
    if devices is not None:
        own |= devices.visibility(range(len(devices.assigned)) if logical_ids is None else logical_ids)
    return env.child_environment(path, own)
