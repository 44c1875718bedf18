"""Data URLs, base64 and local files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from corefw.errors import CapacityError, RequestError
from corefw_io_multimodal.fetching import Fetched
from corefw_io_multimodal.memory import Memory
from corefw_io_multimodal.settings import Multimodal
from corefw_io_multimodal.sources import Encoded, Sources


def read(source: str | Encoded, *, num_bytes: int = 10**6, **settings: object) -> Fetched:
    memory = Memory(num_bytes)
    try:
        with memory.share() as share:
            return Sources(Multimodal(**settings)).read(source, share, param="here")  # type: ignore[arg-type]
    finally:
        assert memory.num_taken == 0


def test_data_urls_and_base64_are_decoded() -> None:
    assert read("data:image/png;base64,aGk=") == Fetched(b"hi", "image/png")
    assert read("DATA:image/PNG;charset=x;base64,aGk%3D") == Fetched(b"hi", "image/png")
    assert read("data:text/plain,a%20b") == Fetched(b"a b", "text/plain")
    assert read("data:,x") == Fetched(b"x", "")
    assert read(Encoded("aGk=", "audio/wav")) == Fetched(b"hi", "audio/wav")


@pytest.mark.parametrize(
    "source",
    [
        "data:image/png;base64",
        "data:image/png;base64,a",
        "data:image/png;base64,a*b=",
        "data:;base64,aGk",
        Encoded("ä"),
    ],
)
def test_damaged_data_are_refused(source: str | Encoded) -> None:
    with pytest.raises(RequestError) as raised:
        read(source)
    assert raised.value.param == "here"


def test_data_have_a_limit_each_and_all_together() -> None:
    with pytest.raises(RequestError, match="more than 10 bytes"):
        read(Encoded("a" * 16), max_item_bytes=10)
    with pytest.raises(CapacityError):
        read(Encoded("a" * 16), num_bytes=11)


def test_local_files_are_read_below_one_directory_alone(tmp_path: Path) -> None:
    root = tmp_path / "media"
    (root / "deep").mkdir(parents=True)
    (root / "deep" / "a b.png").write_bytes(b"inside")
    (tmp_path / "secret").write_bytes(b"outside")
    (tmp_path / "media2").mkdir()
    (tmp_path / "media2" / "x").write_bytes(b"outside")
    (root / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(root / "pipe")
    inside = f"file://{root}/deep/a%20b.png"
    assert read(inside, allowed_local_media_path=str(root)).content == b"inside"
    for url in (
        f"file://{tmp_path}/secret",
        f"file://{root}/../secret",
        f"file://{root}/%2e%2e/secret",
        f"file://{tmp_path}/media2/x",
        f"file://{root}/link",
        f"file://{root}/pipe",
        f"file://{root}/deep",
        f"file://{root}/none",
        f"file://{root}/%00",
        f"file://elsewhere{root}/deep/a%20b.png",
        "file:///etc/passwd",
    ):
        with pytest.raises(RequestError, match="doesn't read that file"):
            read(url, allowed_local_media_path=str(root))
    with pytest.raises(RequestError, match="doesn't read that file"):
        read(inside)
