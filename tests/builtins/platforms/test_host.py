from __future__ import annotations

import os
from pathlib import Path

import pytest

from corefw.builtins.platforms.host import Host

GIB = 2**30


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    meminfo = (
        f"MemTotal: {16 * GIB // 1024} kB\nMemFree: 5 kB\nMemAvailable: {10 * GIB // 1024} kB\nHugePages_Total: 0\n"
    )
    _write(tmp_path, {"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n"})
    return tmp_path


def _host(root: Path) -> Host:
    return Host(root / "proc", root / "cgroup")


def test_without_limits_memory_is_the_machines(root: Path) -> None:
    assert _host(root).total_memory_bytes() == 16 * GIB
    assert _host(root).available_memory_bytes() == 10 * GIB


def test_a_version_2_limit_counts_and_droppable_page_cache_is_free(root: Path) -> None:
    _write(
        root,
        {
            "proc/self/cgroup": "0::/pod/container\n",
            "cgroup/pod/container/memory.max": f"{4 * GIB}\n",
            "cgroup/pod/container/memory.current": f"{3 * GIB}\n",
            "cgroup/pod/container/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            "cgroup/pod/memory.max": "max\n",
        },
    )
    assert _host(root).total_memory_bytes() == 4 * GIB
    assert _host(root).available_memory_bytes() == 2 * GIB


def test_a_limit_of_a_group_above_ours_counts_too(root: Path) -> None:
    _write(
        root,
        {
            "proc/self/cgroup": "0::/pod/container\n",
            "cgroup/pod/container/memory.max": f"{8 * GIB}\n",
            "cgroup/pod/memory.max": f"{3 * GIB}\n",
            "cgroup/pod/memory.current": f"{GIB}\n",
        },
    )
    assert _host(root).total_memory_bytes() == 3 * GIB
    assert _host(root).available_memory_bytes() == 2 * GIB


def test_a_version_1_limit_counts_also_when_the_path_is_the_hosts(root: Path) -> None:
    _write(
        root,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n",
            "cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
            "cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
            "cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 2}\n",
            "cgroup/cpu/cpu.cfs_quota_us": "150000\n",
            "cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert _host(root).total_memory_bytes() == 2 * GIB
    assert _host(root).available_memory_bytes() == 3 * GIB // 2
    assert _host(root).usable_cpus() == 1


def test_version_1s_way_to_write_no_limit_is_no_limit(root: Path) -> None:
    _write(
        root,
        {
            "proc/self/cgroup": "4:memory:/\n3:cpu:/\n",
            "cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert _host(root).total_memory_bytes() == 16 * GIB
    assert _host(root).usable_cpus() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("quota", "cpus"), [("50000 100000", 1), ("max 100000", None), ("100000 100000", 1)])
def test_a_version_2_cpu_quota_limits_the_cpus(root: Path, quota: str, cpus: int | None) -> None:
    _write(root, {"cgroup/cpu.max": f"{quota}\n"})
    assert _host(root).usable_cpus() == (cpus or len(os.sched_getaffinity(0)))


def test_a_container_over_its_limit_has_nothing_left(root: Path) -> None:
    _write(root, {"cgroup/memory.max": f"{GIB}\n", "cgroup/memory.current": f"{2 * GIB}\n"})
    assert _host(root).available_memory_bytes() == 0


def test_without_any_of_the_files_there_are_still_numbers(tmp_path: Path) -> None:
    host = _host(tmp_path)
    assert host.total_memory_bytes() > 0
    assert host.available_memory_bytes() > 0
    assert host.usable_cpus() >= 1
    assert host.cpu_flags() == frozenset()


def test_the_real_machine_has_sensible_numbers() -> None:
    host = Host()
    assert 0 < host.available_memory_bytes() <= host.total_memory_bytes()
    assert 1 <= host.usable_cpus() <= (os.cpu_count() or 1)
