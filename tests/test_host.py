from __future__ import annotations

import os
from pathlib import Path

import pytest

from corefw.errors import ConfigError
from corefw.host import CpuShare, Host, parse_cpu_list

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


def _machine(root: Path, nodes: dict[int, str], cores: list[str], affinity: range | None = None) -> Host:
    """Nodes by their CPUs; cores by their threads."""
    _write(root, {f"devices/node/node{node}/cpulist": f"{cpus}\n" for node, cpus in nodes.items()})
    siblings = {cpu: core for core in cores for cpu in parse_cpu_list(core)}
    _write(root, {f"devices/cpu/cpu{n}/topology/thread_siblings_list": f"{core}\n" for n, core in siblings.items()})
    given = frozenset(siblings if affinity is None else affinity)
    return Host(root / "proc", root / "cgroup", root / "devices", given)


def _cpus(host: Host, num_ranks: int) -> list[tuple[int, ...]]:
    return [host.share(rank, num_ranks).cpus for rank in range(num_ranks)]


def _nodes(host: Host, num_ranks: int) -> list[tuple[int, ...]]:
    return [host.share(rank, num_ranks).nodes for rank in range(num_ranks)]


def test_a_rank_stays_on_one_numa_node_where_cpus_are_numbered_across_nodes(root: Path) -> None:
    host = _machine(root, {0: "0,2,4,6", 1: "1,3,5,7"}, [str(cpu) for cpu in range(8)])
    assert _cpus(host, 2) == [(0, 2, 4, 6), (1, 3, 5, 7)]
    assert _cpus(host, 4) == [(0, 2), (4, 6), (1, 3), (5, 7)]
    assert _nodes(host, 4) == [(0,), (0,), (1,), (1,)]
    assert host.share(0, 1) == CpuShare(tuple(range(8)), (0, 1))


def test_two_ranks_dont_share_a_core(root: Path) -> None:
    host = _machine(root, {0: "0-7"}, ["0,4", "1,5", "2,6", "3,7"])
    assert _cpus(host, 2) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert _cpus(host, 4) == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_two_workers_on_two_cpus_have_one_each_also_where_these_are_one_core(root: Path) -> None:
    assert _cpus(_machine(root, {0: "0-1"}, ["0", "1"]), 2) == [(0,), (1,)]
    assert _cpus(_machine(root, {0: "0-1"}, ["0-1"]), 2) == [(0,), (1,)]


def test_of_a_quota_each_has_its_part_and_whole_cores_come_first(root: Path) -> None:
    _write(root, {"cgroup/cpu.max": "400000 100000\n"})
    host = _machine(root, {0: "0-7"}, ["0,4", "1,5", "2,6", "3,7"])
    assert _cpus(host, 2) == [(0, 1), (2, 3)]
    assert [host.share(rank, 8).num_threads for rank in range(8)] == [1] * 8


def test_a_cpuset_counts_and_memory_without_cpus_is_no_ranks_node(root: Path) -> None:
    host = _machine(root, {0: "0-3", 1: "4-7", 2: ""}, [str(cpu) for cpu in range(8)], affinity=range(2, 6))
    assert _cpus(host, 2) == [(2, 3), (4, 5)]
    assert _nodes(host, 2) == [(0,), (1,)]


@pytest.mark.parametrize("num_ranks", range(1, 13))
def test_ranks_never_share_a_cpu_while_there_are_enough_and_differ_by_a_core_at_most(
    root: Path, num_ranks: int
) -> None:
    host = _machine(root, {0: "0-2,6-8", 1: "3-5,9-11"}, [f"{cpu},{cpu + 6}" for cpu in range(6)])
    shares = _cpus(host, num_ranks)
    taken = [cpu for share in shares for cpu in share]
    assert len(set(taken)) == len(taken)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 2
    assert sum(sizes) <= host.usable_cpus()


def test_more_ranks_than_cpus_have_one_each(root: Path) -> None:
    host = _machine(root, {0: "0-1"}, ["0", "1"])
    assert _cpus(host, 5) == [(0,), (1,), (0,), (1,), (0,)]


def test_without_a_topology_the_cpus_are_counted_through(tmp_path: Path) -> None:
    host = Host(tmp_path, tmp_path, tmp_path, frozenset(range(4)))
    assert _cpus(host, 2) == [(0, 1), (2, 3)]
    assert _nodes(host, 2) == [(0,), (0,)]


def test_what_the_parent_gave_is_all_there_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = _machine(root, {0: "0-3"}, [str(cpu) for cpu in range(4)])
    monkeypatch.setenv("COREFW_CPUS", "1,3")
    assert (host.cpus(), host.usable_cpus(), _cpus(host, 2)) == ((1, 3), 2, [(1,), (3,)])


def test_a_share_of_cpus_that_arent_ours_is_no_reason_to_have_none(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = _machine(root, {0: "0-3"}, [str(cpu) for cpu in range(4)])
    monkeypatch.setenv("COREFW_CPUS", "8-11")  # of another machine, or before an affinity was set
    assert host.cpus() == (0, 1, 2, 3)


@pytest.mark.parametrize("value", ["x", "0-", "1,-2", "0..3"])
def test_a_malformed_share_is_an_error(root: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("COREFW_CPUS", value)
    with pytest.raises(ConfigError, match=r"COREFW_CPUS=.* is no list of CPUs such as 0-3,8"):
        _machine(root, {0: "0-3"}, ["0"]).cpus()
