"""Only regular files are opened, and nothing waits for a pipe's other end."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from corefw.config.regular_file import check_regular, open_regular, read_regular_text


@pytest.fixture(params=["pipe", "directory", "socket", "device"])
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "odd"
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "directory":
        path.mkdir()
    elif request.param == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))  # its file stays
    else:
        return Path("/dev/zero")
    return path


@pytest.mark.timeout(10)
def test_what_is_no_file_is_named_and_not_opened(odd: Path) -> None:
    for reader in (check_regular, open_regular, read_regular_text):
        with pytest.raises(OSError, match="isn't a regular file, but"):
            reader(odd)


def test_a_link_to_a_file_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes("\ufeffé".encode())
    (tmp_path / "link").symlink_to("file")
    assert read_regular_text(tmp_path / "link") == "é"


def test_a_file_above_the_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("12345")
    assert read_regular_text(tmp_path / "file", 5) == "12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_regular_text(tmp_path / "file", 4)
