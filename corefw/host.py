"""What this machine, or the container we are in, has to offer, and how ranks share it.

Linux's files with portable fallbacks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from corefw import env
from corefw.errors import ConfigError

__all__ = ["CpuShare", "Host", "parse_cpu_list"]

_T = TypeVar("_T")

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
class CpuShare:
    """What one of several ranks on a machine may keep busy.

    Attributes:
        cpus: their numbers. Ranks have different ones as long as there are enough.
        nodes: the NUMA nodes that they are on.
    """

    cpus: tuple[int, ...]
    nodes: tuple[int, ...]

    @property
    def num_threads(self) -> int:
        """Threads that compute."""
        return len(self.cpus)


@dataclass(frozen=True, slots=True)
class Host:
    """Reads ``/proc``, the control groups and the machine's topology.

    Attributes:
        proc: where procfs is mounted.
        cgroup: where the control groups are mounted.
        devices: where sysfs tells of processors and their memory.
        affinity: stands in for this process's own.
    """

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")
    devices: Path = Path("/sys/devices/system")
    affinity: frozenset[int] | None = None

    def cpu_flags(self) -> frozenset[str]:
        """Instruction-set extensions of the first CPU; empty where they can't be read."""
        for line in _read(self.proc / "cpuinfo").splitlines():
            key, _, value = line.partition(":")
            if key.strip().lower() in ("flags", "features"):
                return frozenset(value.split())
        return frozenset()

    def cpus(self) -> tuple[int, ...]:
        """CPUs that this process may run on: its affinity (cpusets count), and of those its share if it was given one.

        Raises:
            ConfigError: ``COREFW_CPUS`` isn't a list of CPUs.
        """
        affinity = self._affinity()
        return tuple(sorted(affinity & _own_share() or affinity))

    def part(self) -> float:
        """This process's part of what it shares with those that were given the other CPUs, above 0, at most 1."""
        affinity = self._affinity()
        return len(affinity & _own_share() or affinity) / len(affinity)

    def usable_cpus(self) -> int:
        """CPUs that this process may keep busy: those that it may run on, cut by the container's quota."""
        return min([len(self.cpus()), *(max(1, int(quota)) for quota in self._cpu_quotas())])

    def share(self, local_rank: int, num_local_ranks: int) -> CpuShare:
        """The CPUs of one of the ranks that share this process's.

        Neighbouring ranks have neighbouring CPUs, whole cores where there are enough of them, so that a rank spans two
        NUMA nodes only where the ranks don't fit into them. Of a container's quota each gets its part; a core's second
        thread is the first to be left out. With more ranks than CPUs each has one, and some have the same.
        """
        cores = self._cores()
        units = cores if len(cores) >= num_local_ranks else [(node, (cpu,)) for node, core in cores for cpu in core]
        own = _part(units, local_rank, num_local_ranks)
        by_thread = sorted((nth, cpu, node) for node, core in own for nth, cpu in enumerate(core))
        kept = by_thread[: max(1, self.usable_cpus() // num_local_ranks)]
        return CpuShare(tuple(sorted(cpu for _, cpu, _ in kept)), tuple(sorted({node for *_, node in kept})))

    def total_memory_bytes(self) -> int:
        """Physical memory, cut by the container's limit."""
        total = self._meminfo().get("MemTotal") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return min([total, *(limit for limit, _ in self._memory_limits())])

    def available_memory_bytes(self) -> int:
        """Memory that can be taken now without swapping: the machine's, cut by what the container has left."""
        available = self._meminfo().get("MemAvailable", self.total_memory_bytes() // 2)
        left = [max(0, limit - used) for limit, used in self._memory_limits()]
        return min([available, *left])

    def _affinity(self) -> frozenset[int]:
        if self.affinity is not None:
            return self.affinity
        has_affinity = hasattr(os, "sched_getaffinity")
        return frozenset(os.sched_getaffinity(0) if has_affinity else range(os.cpu_count() or 1))

    def _cores(self) -> list[tuple[int, tuple[int, ...]]]:
        """(NUMA node, CPUs that are threads of it) of every core that this process may use, node by node."""
        nodes = self._nodes()
        cores: dict[tuple[int, int], list[int]] = {}
        for cpu in self.cpus():
            listed = _read(self.devices / "cpu" / f"cpu{cpu}" / "topology" / "thread_siblings_list")
            first = min(parse_cpu_list(listed) or {cpu})
            cores.setdefault((nodes.get(cpu, 0), first), []).append(cpu)
        return [(node, tuple(cpus)) for (node, _), cpus in sorted(cores.items())]

    def _nodes(self) -> dict[int, int]:
        """NUMA node by CPU; empty where the kernel doesn't tell."""
        return {
            cpu: int(folder.name.removeprefix("node"))
            for folder in (self.devices / "node").glob("node[0-9]*")
            for cpu in parse_cpu_list(_read(folder / "cpulist"))
        }

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


def parse_cpu_list(text: str) -> frozenset[int]:
    """Linux's way to write sets of CPUs: ``0-3,8``. Empty for an empty text.

    Raises:
        ValueError: it is something else.
    """
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        cpus.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(cpus)


def _own_share() -> frozenset[int]:
    """What this process's parent gave it; empty where nobody did."""
    listed = env.cpu_share() or ""
    try:
        return parse_cpu_list(listed)
    except ValueError:
        raise ConfigError(f"COREFW_CPUS={listed[:60]!r} is no list of CPUs such as 0-3,8") from None


def _part(units: Sequence[_T], index: int, num_parts: int) -> Sequence[_T]:
    """One of several consecutive parts whose sizes differ by one at most; never empty."""
    if num_parts > len(units):
        return [units[index % len(units)]]
    return units[index * len(units) // num_parts : (index + 1) * len(units) // num_parts]


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
