from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from corefw.engine.clients.link import private_directory


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
