from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from corefw.config.rank_grid import Axis, RankGrid
from corefw.errors import ConfigError, EngineDeadError, EngineStartError
from corefw.interfaces.communicator import CommunicatorGroup
from corefw.plugin_system.manager import PluginManager
from corefw.runtime.distributed.groups import AxisGroup, RankGroups
from corefw.runtime.distributed.rank_group import RankGroup
from corefw.runtime.distributed.rendezvous import LocalMeeting
from tests.runtime.distributed.ranks import TIMEOUT_S, join, on_each_rank
from tests.runtime.distributed.recording_communicator import RecordingCommunicator


def test_ranks_add_up_along_the_tensor_axis_alone() -> None:
    def work(groups: RankGroups) -> tuple[int, int, float]:
        total = groups.tensor.all_reduce(torch.full((2, 3), float(groups.place.rank + 1)))
        return groups.tensor.rank, groups.tensor.size, float(total[1, 2])

    assert on_each_rank(RankGrid(tensor=2, pipeline=2), work) == [(0, 2, 3), (1, 2, 3), (0, 2, 7), (1, 2, 7)]


def test_gathered_columns_stand_in_the_order_of_ranks() -> None:
    def work(groups: RankGroups) -> list[list[float]]:
        rows: list[list[float]] = groups.tensor.all_gather(torch.full((2, 2), float(groups.place.rank))).tolist()
        return rows

    assert on_each_rank(RankGrid(tensor=3), work) == [[[0, 0, 1, 1, 2, 2]] * 2] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_row_s_sum_does_not_depend_on_the_other_rows(size: int, dtype: torch.dtype) -> None:
    def work(groups: RankGroups) -> bool:
        part = torch.randn(97, 33, generator=torch.Generator().manual_seed(groups.place.rank)).to(dtype)
        together = groups.tensor.all_reduce(part.clone())
        alone = [groups.tensor.all_reduce(part[i : i + 1].clone()) for i in range(0, 97, 8)]
        assert together.dtype == dtype
        return torch.equal(together[::8], torch.cat(alone))

    assert on_each_rank(RankGrid(tensor=size), work) == [True] * size


def test_an_ordered_sum_is_that_of_a_loop_over_the_ranks() -> None:
    parts = [torch.tensor([[1e8, 1.0]]), torch.tensor([[3.0, 1e-8]]), torch.tensor([[-1e8, -1.0]])]

    def work(groups: RankGroups) -> list[list[float]]:
        total: list[list[float]] = groups.tensor.all_reduce(parts[groups.place.rank].clone()).tolist()
        return total

    assert on_each_rank(RankGrid(tensor=3), work) == [((parts[0] + parts[1]) + parts[2]).tolist()] * 3


def test_every_axis_with_several_ranks_has_its_groups() -> None:
    grid = RankGrid(tensor=2, pipeline=1, data=2)

    def work(groups: RankGroups) -> tuple[list[Axis], float]:
        data = groups.axes[Axis.DATA].cpu.all_reduce(torch.tensor([float(groups.place.rank)]))
        return list(groups.axes), float(data)

    assert on_each_rank(grid, work) == [([Axis.TENSOR, Axis.DATA], total) for total in (2, 4, 2, 4)]


def test_plain_data_goes_among_all_ranks() -> None:
    def work(groups: RankGroups) -> tuple[object, object]:
        mine = {"rank": groups.place.rank, "text": "é" * groups.place.rank, "bytes": b"\x00\xff"}
        groups.world.barrier()
        return groups.world.all_gather_object(mine), groups.world.broadcast_object(mine, source=2)

    all_of_them = [{"rank": rank, "text": "é" * rank, "bytes": b"\x00\xff"} for rank in range(3)]
    assert on_each_rank(RankGrid(tensor=3), work) == [(all_of_them, all_of_them[2])] * 3


def test_a_digest_that_differs_on_one_rank_is_noticed_on_all() -> None:
    def work(groups: RankGroups) -> tuple[bool, bool]:
        late = b"12345678" if groups.place.rank < 2 else b"12345679"
        return groups.world.is_same(b"a digest"), groups.world.is_same(late)

    assert on_each_rank(RankGrid(tensor=3), work) == [(True, False)] * 3


def test_a_barrier_lets_nobody_through_before_the_last() -> None:
    def work(groups: RankGroups) -> tuple[float, float]:
        if groups.place.rank == 1:
            time.sleep(0.3)
        came = time.monotonic()
        groups.world.barrier()
        return came, time.monotonic()

    times = on_each_rank(RankGrid(tensor=2), work)
    assert min(passed for _, passed in times) >= max(came for came, _ in times)


def test_one_rank_is_alone_without_torch() -> None:
    code = (
        "import sys\nfrom corefw.runtime.distributed.groups import RankGroups\ngroups = RankGroups.alone()\n"
        "assert groups.world.all_gather_object([1]) == [[1]]\n"
        "assert groups.world.broadcast_object({'a': 1}) == {'a': 1}\n"
        "groups.world.barrier(); groups.close()\n"
        "assert (groups.tensor.rank, groups.tensor.size) == (0, 1)\n"
        "assert groups.pipeline.is_first and groups.pipeline.is_last\n"
        "assert groups.tensor.all_reduce('x') == 'x'\nassert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_grid_of_one_meets_nobody() -> None:
    groups = join(RankGrid(), 0, "tcp://192.0.2.1:1")
    assert groups.axes == {}


def test_who_does_not_come_is_named() -> None:
    with LocalMeeting() as meeting, pytest.raises(EngineStartError, match=r"rank 1 waited 0\.5 s .* didn't come: 0, 2"):
        join(RankGrid(tensor=3), 1, meeting.address, timeout_s=0.5)


def test_a_rank_that_hangs_is_told_by_its_group_and_the_time_limit() -> None:
    def work(groups: RankGroups) -> str:
        if groups.place.rank == 1:
            time.sleep(1.5)
            return ""
        with pytest.raises(EngineDeadError) as caught:
            groups.tensor.all_reduce(torch.ones(4))
        return str(caught.value)

    told, _ = on_each_rank(RankGrid(tensor=2), work, timeout_s=0.5)
    assert told.startswith(
        "rank 0: all_reduce of the tensor ranks 0, 1 failed after 0.5 s: one of them didn't answer for 0.5 s"
    )


_DYING = """
import sys, os
from tests.runtime.distributed.ranks import join
from corefw.config.rank_grid import RankGrid
groups = join(RankGrid(tensor=2), 1, sys.argv[1])
groups.world.barrier()
os._exit(9)
"""


def test_a_rank_that_dies_is_told_at_once() -> None:
    root = Path(__file__).parents[3]
    with LocalMeeting() as meeting:
        child = subprocess.Popen([sys.executable, "-c", _DYING, meeting.address], cwd=root)
        groups = join(RankGrid(tensor=2), 0, meeting.address)
        groups.world.barrier()
        begin = time.monotonic()
        with pytest.raises(
            EngineDeadError, match=r"rank 0: .* of the tensor ranks 0, 1 failed .*: one of them has gone"
        ):
            groups.tensor.all_reduce(torch.ones(4))
        assert time.monotonic() - begin < 10
        groups.close()
        assert child.wait(30) == 9


def test_who_waits_for_a_rank_that_left_is_told_at_once() -> None:
    def work(groups: RankGroups) -> float:
        begin = time.monotonic()
        if groups.place.rank == 1:
            groups.close()
        else:
            with pytest.raises(EngineDeadError, match="one of them has gone"):
                groups.tensor.all_reduce(torch.ones(4))
        return time.monotonic() - begin

    assert max(on_each_rank(RankGrid(tensor=2), work)) < TIMEOUT_S / 2


def test_a_device_s_communicators_close_before_the_groups_in_host_memory() -> None:
    RecordingCommunicator.closed.clear()
    group = CommunicatorGroup(
        axis="tensor",
        ranks=(0,),
        rank=0,
        device=torch.device("cpu"),
        store=None,  # type: ignore[arg-type]
        timeout_s=1,
        on_one_machine=True,
    )
    on_device = RankGroup(type("OnDevice", (RecordingCommunicator,), {}), group)
    on_host = RankGroup(type("OnHost", (RecordingCommunicator,), {}), group)
    AxisGroup(on_device, on_host).close()
    assert RecordingCommunicator.closed == ["OnDevice", "OnHost"]


def test_groups_close_twice_and_after_a_failure() -> None:
    def work(groups: RankGroups) -> bool:
        if groups.place.rank == 0:
            time.sleep(1.5)
        else:
            with pytest.raises(EngineDeadError):
                groups.world.barrier()
        groups.close()
        groups.close()
        return True

    assert on_each_rank(RankGrid(tensor=2), work, timeout_s=0.5) == [True, True]


def test_the_default_group_is_left_to_the_user_s_script() -> None:
    on_each_rank(RankGrid(tensor=2), lambda groups: groups.tensor.all_reduce(torch.ones(1)))
    assert not torch.distributed.is_initialized()


def test_a_communicator_that_is_not_for_the_device_is_refused_with_its_reason() -> None:
    grid = RankGrid(tensor=2)
    with pytest.raises(ConfigError, match="'gloo' was asked for, but can't be used: it moves tensors in host memory"):
        RankGroups.join(
            grid,
            grid.place(0),
            plugins=PluginManager.discover(""),
            communicator="gloo",
            address="tcp://127.0.0.1:1",
            device=torch.device("meta"),
            timeout_s=1,
            batch_invariant=False,
        )


def _open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_nothing_is_left_of_a_meeting() -> None:
    before = set(Path("/dev/shm").iterdir()), _open_descriptors()
    on_each_rank(RankGrid(tensor=2), lambda groups: groups.world.barrier())
    assert set(Path("/dev/shm").iterdir()) == before[0]
    deadline = time.monotonic() + 10
    while _open_descriptors() > before[1] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _open_descriptors() <= before[1]
