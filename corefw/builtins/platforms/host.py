"""What this machine, or the container we are in, has to offer. Torch-free; Linux's files with portable fallbacks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Host"]

# cgroup v1 writes "no limit" as the largest page-aligned number; nobody has an exbibyte.
_UNLIMITED_BYTES = 2**60


@dataclass(frozen=True, slots=True)
class _MemoryFiles:
    """File names of one cgroup version."""

    limit: str
    usage: str
    reclaimable: str


_V1 = _MemoryFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _MemoryFiles("memory.max", "memory.current", "inactive_file")


@dataclass(frozen=True, slots=True)
class Host:
    """Reads ``/proc`` and the control groups.

    Attributes:
        proc: where procfs is mounted.
        cgroup: where the control groups are mounted.
    """

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")

    def cpu_flags(self) -> frozenset[str]:
        """Instruction-set extensions of the first CPU; empty where they can't be read."""
        for line in _read(self.proc / "cpuinfo").splitlines():
            key, _, value = line.partition(":")
            if key.strip().lower() in ("flags", "features"):
                return frozenset(value.split())
        return frozenset()

    def usable_cpus(self) -> int:
        """CPUs that this process may keep busy: its affinity, cut by the container's quota."""
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        for quota in self._cpu_quotas():
            count = min(count, max(1, int(quota)))
        return count

    def total_memory_bytes(self) -> int:
        """Physical memory, cut by the container's limit."""
        total = self._meminfo().get("MemTotal") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return min([total, *(limit for limit, _ in self._memory_limits())])

    def available_memory_bytes(self) -> int:
        """Memory that can be taken now without swapping: the machine's, cut by what the container has left."""
        available = self._meminfo().get("MemAvailable", self.total_memory_bytes() // 2)
        left = [max(0, limit - used) for limit, used in self._memory_limits()]
        return min([available, *left])

    def _meminfo(self) -> dict[str, int]:
        """In bytes."""
        fields: dict[str, int] = {}
        for line in _read(self.proc / "meminfo").splitlines():
            name, _, value = line.partition(":")
            if value.endswith("kB"):
                fields[name] = int(value.split()[0]) * 1024
        return fields

    def _memory_limits(self) -> Iterator[tuple[int, int]]:
        """(limit, used without page cache that can be dropped) of our group and those above it."""
        for folder, files in (
            *((folder, _V2) for folder in self._groups("", "")),
            *((folder, _V1) for folder in self._groups("memory", "memory")),
        ):
            limit = _number(_read(folder / files.limit))
            if limit is None or limit >= _UNLIMITED_BYTES:
                continue
            used = _number(_read(folder / files.usage)) or 0
            reclaimable = _stat(_read(folder / "memory.stat"), files.reclaimable)
            yield limit, max(0, used - reclaimable)

    def _cpu_quotas(self) -> Iterator[float]:
        """CPUs a group may use, of our group and those above it."""
        for folder in self._groups("", ""):
            quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
            if quota.isdigit() and period.isdigit():
                yield int(quota) / int(period)
        for folder in self._groups("cpu", "cpu"):
            quota_us, period_us = (_number(_read(folder / f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
            if quota_us and period_us and quota_us > 0:
                yield quota_us / period_us

    def _groups(self, controller: str, mount: str) -> Iterator[Path]:
        """Folders from our group up to the mount. In a container the path may be the host's: those don't exist."""
        root = self.cgroup / mount
        for line in _read(self.proc / "self" / "cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controller not in controllers.split(","):
                continue
            folder = root / path.strip("/")
            yield folder
            yield from (parent for parent in folder.parents if parent == root or root in parent.parents)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    """None for an absent file and for v2's ``max``."""
    text = text.strip()
    return int(text) if text.removeprefix("-").isdigit() else None


def _stat(text: str, name: str) -> int:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
