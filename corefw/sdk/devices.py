"""What platforms and executors build on: numbers of devices, CPUs, environments of children, room in ``/dev/shm``."""

from __future__ import annotations

from corefw.config.child_environment import child_environment
from corefw.config.device_ids import DeviceIds
from corefw.host import CpuShare, Host
from corefw.runtime.distributed.shared_memory import shared_memory_problem

__all__ = ["CpuShare", "DeviceIds", "Host", "child_environment", "shared_memory_problem"]
