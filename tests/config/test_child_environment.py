from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from corefw.config.child_environment import child_environment
from corefw.config.device_ids import DeviceIds
from corefw.host import Host

_EIGHT = Host(affinity=frozenset(range(8)), devices=Path("/nowhere"), cgroup=Path("/nowhere"))
_BOARDS = DeviceIds(variable="BOARDS", visible=(4, 5, 6, 7), names=("4", "5", "6", "7"), assigned=(4, 5, 6, 7))


def test_each_child_has_its_part_of_the_cpus() -> None:
    assert [child_environment(rank, 2, host=_EIGHT)["COREFW_CPUS"] for rank in range(2)] == ["0,1,2,3", "4,5,6,7"]


def test_a_child_divides_its_own_part_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREFW_CPUS", child_environment(1, 2, host=_EIGHT)["COREFW_CPUS"])
    assert [child_environment(rank, 2, host=_EIGHT)["COREFW_CPUS"] for rank in range(2)] == ["4,5", "6,7"]


def test_ranks_of_one_engine_see_all_of_its_devices() -> None:
    assert child_environment(1, 2, devices=_BOARDS, host=_EIGHT)["BOARDS"] == "4,5,6,7"


def test_a_replica_sees_its_own_devices_alone() -> None:
    assert child_environment(1, 2, devices=_BOARDS, logical_ids=[2, 3], host=_EIGHT)["BOARDS"] == "6,7"


def test_the_users_number_of_threads_goes_to_every_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert child_environment(0, 8, host=_EIGHT)["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(("chosen", "threads"), [({}, "1"), ({"OMP_NUM_THREADS": "2"}, "2")])
def test_a_worker_computes_with_its_share_unless_the_user_chose(
    monkeypatch: pytest.MonkeyPatch, chosen: dict[str, str], threads: str
) -> None:
    program = (
        "import torch\nfrom corefw.builtins.platforms.cpu_runtime import CpuRuntime\n"
        "CpuRuntime()\nprint(torch.get_num_threads())"
    )
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    environment = {**child_environment(0, len(os.sched_getaffinity(0))), **chosen}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout.strip(), done.stderr) == (threads, "")
