"""The folder of kept weights."""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from corefw.models.weights_cache.memory import HUGE_PAGE_BYTES
from corefw.models.weights_cache.store import WeightsStore

FILE_BYTES = 2 * HUGE_PAGE_BYTES  # of a file with one page of weights
LIMIT = 3 * FILE_BYTES


def _weights(value: int = 1) -> list[np.ndarray]:
    return [np.full(HUGE_PAGE_BYTES, value, np.uint8)]


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    logger = logging.getLogger("corefw")
    before, logger.propagate = logger.propagate, True
    caplog.set_level("INFO", "corefw")
    yield caplog
    logger.propagate = before


def test_weights_are_found_under_their_key_alone(tmp_path: Path) -> None:
    store = WeightsStore(tmp_path / "new" / "folder", LIMIT)
    assert store.find("a") is None
    assert store.keep("a", {"n": 1}, _weights(7))
    kept = store.find("a")
    assert kept is not None
    assert (kept.about, kept.tensors[0][-1]) == ({"n": 1}, 7)
    assert store.find("b") is None
    assert (tmp_path / "new" / "folder").stat().st_mode & 0o077 == 0


def test_what_was_used_longest_ago_makes_room(tmp_path: Path) -> None:
    store = WeightsStore(tmp_path, LIMIT)
    for age, key in enumerate("cba"):
        assert store.keep(key, {}, _weights())
        os.utime(store.path(key), (0, 1000 - age))  # a is the oldest
    assert store.find("a") is not None  # and used now
    assert store.keep("d", {}, _weights())
    assert _names(tmp_path) == {"a.weights", "c.weights", "d.weights"}


def test_weights_beyond_the_limit_are_not_kept_and_drop_nobody(tmp_path: Path, told: pytest.LogCaptureFixture) -> None:
    assert WeightsStore(tmp_path, LIMIT).keep("a", {}, _weights())
    assert not WeightsStore(tmp_path, HUGE_PAGE_BYTES - 1).keep("b", {}, _weights())
    assert "--weights-cache-bytes allows" in told.text
    assert _names(tmp_path) == {"a.weights"}


def test_a_damaged_file_is_dropped_and_said(tmp_path: Path, told: pytest.LogCaptureFixture) -> None:
    store = WeightsStore(tmp_path, LIMIT)
    store.keep("a", {}, _weights())
    with store.path("a").open("r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"\0")
    assert store.find("a") is None
    assert f"{store.path('a')} is dropped, since its sums don't fit its content" in told.text
    assert _names(tmp_path) == set()


def test_a_folder_that_cant_be_made_is_done_without_and_said(tmp_path: Path, told: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no folder")
    store = WeightsStore(tmp_path / "file" / "cache", LIMIT)
    assert store.find("a") is None
    assert not store.keep("a", {}, _weights())
    assert "aren't kept in" in told.text


def test_a_full_disk_is_done_without_and_leaves_nothing(tmp_path: Path, told: pytest.LogCaptureFixture) -> None:
    script = (
        "import resource, signal, sys; from pathlib import Path; import numpy as np\n"
        "from corefw.models.weights_cache.store import WeightsStore\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000,) * 2)\n"
        "store = WeightsStore(Path(sys.argv[1]), 10**9)\n"
        "sys.exit(10 + store.keep('a', {}, [np.zeros(5_000_000, np.uint8)]))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == 10
    assert _names(tmp_path) == set()


def test_one_of_several_starts_at_once_keeps_them_and_all_can_read(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from corefw.models.weights_cache.store import WeightsStore\n"
        "store = WeightsStore(Path(sys.argv[1]), 10**9)\n"
        "for key in 'abc' * 5:\n"
        "    kept = store.find(key)\n"
        "    assert kept is None or (kept.tensors[0] == ord(key)).all()\n"
        "    store.keep(key, {}, [np.full(5_000_000, ord(key), np.uint8)])\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    starts = [subprocess.Popen(command) for _ in range(2)]
    assert [start.wait() for start in starts] == [0, 0]
    assert _names(tmp_path) == {"a.weights", "b.weights", "c.weights"}


def test_what_another_start_writes_is_left_to_it_and_what_a_killed_one_left_is_cleared(
    tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    store = WeightsStore(tmp_path, LIMIT)
    with (tmp_path / ".a.part").open("wb") as others:
        fcntl.flock(others, fcntl.LOCK_EX)
        assert not store.keep("a", {}, _weights())
        assert "another start is keeping them" in told.text
        assert store.keep("b", {}, _weights())
        assert _names(tmp_path) == {".a.part", "b.weights"}
        others.write(b"begun")  # and the end of the block is that start's
    assert store.keep("c", {}, _weights())
    assert _names(tmp_path) == {"b.weights", "c.weights"}


def test_a_start_that_is_killed_while_it_writes_costs_the_next_one_nothing(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; import numpy as np\n"
        "from corefw.models.weights_cache import store\n"
        "store.write_kept = lambda fd, *_: (os.write(fd, bytes(10**7)), os._exit(3))\n"
        "store.WeightsStore(Path(sys.argv[1]), 10**9).keep('a', {}, [np.zeros(1000, np.uint8)])"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == 3
    assert _names(tmp_path) == {".a.part"}
    store = WeightsStore(tmp_path, LIMIT)
    assert store.keep("a", {}, _weights(7))
    kept = store.find("a")
    assert kept is not None
    assert kept.tensors[0][0] == 7
