from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from corefw.engine.clients.link import private_directory
from corefw.errors import EngineStartError


def test_a_folder_of_sockets_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="t-") as parent:
        monkeypatch.setattr(tempfile, "tempdir", parent)
        directory = private_directory()
        assert directory.parent == Path(parent)
        assert directory.stat().st_mode & 0o777 == 0o700


def test_a_temporary_directory_with_too_long_a_path_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    directory = private_directory()
    assert len(str(directory / "requests")) < 108
    assert directory.parent != long
    directory.rmdir()


def test_a_temporary_directory_that_takes_nothing_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    directory = private_directory()
    assert directory.parent != tmp_path / "gone"
    directory.rmdir()


def test_without_any_temporary_directory_every_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(prefix: str, dir: str) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(EngineStartError, match=r"/tmp: No space left on device; .*/dev/shm: .*; set TMPDIR"):
        private_directory()
