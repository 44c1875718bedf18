from __future__ import annotations

import os
from pathlib import Path

from corefw.runtime.distributed.shared_memory import shared_memory_problem


def test_enough_room_is_no_problem(tmp_path: Path) -> None:
    assert shared_memory_problem("NCCL", 1, tmp_path) is None


def test_too_little_room_is_told_with_its_size_and_the_remedy(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    needed = (found.f_bavail + 10_000_000) * found.f_frsize
    told = shared_memory_problem("Ray", needed, tmp_path)
    assert told is not None
    assert told.startswith(f"Ray needs {-(-needed // 2**20)} MiB in {tmp_path}, where ")
    assert f"docker run --shm-size={-(-needed // 2**20)}m" in told


def test_a_machine_without_the_folder_is_told_so(tmp_path: Path) -> None:
    told = shared_memory_problem("NCCL", 2**30, tmp_path / "shm")
    assert told is not None
    assert "which can't be used (No such file or directory)" in told
    assert "--shm-size=1024m" in told
