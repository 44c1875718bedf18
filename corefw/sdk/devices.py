"""What platforms and executors build on: numbers of devices, shares of a machine's CPUs, environments of children."""

from __future__ import annotations

from corefw.config.child_environment import child_environment
from corefw.config.device_ids import DeviceIds
from corefw.host import CpuShare, Host

__all__ = ["CpuShare", "DeviceIds", "Host", "child_environment"]
