"""Files of kept weights, and what may be wrong with one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from corefw.errors import ModelFormatError
from corefw.models.weights_cache.kept_file import read_kept, write_kept
from corefw.models.weights_cache.memory import HUGE_PAGE_BYTES, mapped_or_read

SIZES = (1, 64, 1000, 9 * HUGE_PAGE_BYTES + 7, 3)  # several pieces, and one that ends in the middle of a word


def _tensors() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(0, 256, size, dtype=np.uint8) for size in SIZES]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "a"
    fd = os.open(made, os.O_WRONLY | os.O_CREAT)
    write_kept(fd, "key", {"said": [1, None]}, _tensors())
    os.close(fd)
    return made


def test_what_was_written_is_read(path: Path) -> None:
    kept = read_kept(path, "key")
    assert kept.about == {"said": [1, None]}
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(_tensors(), kept.tensors, strict=True))
    assert kept.num_bytes == sum(SIZES)


def test_writing_to_what_was_read_leaves_the_file_as_it_is(path: Path) -> None:
    kept = read_kept(path, "key")
    kept.tensors[3][:] = 0
    assert read_kept(path, "key").tensors[3].any()


def _flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize(
    ("offset", "reason"),
    [
        (3, "doesn't begin"),
        (60, "header is damaged"),
        (HUGE_PAGE_BYTES, "sums don't fit"),
        (HUGE_PAGE_BYTES + sum(SIZES) - 100, "sums don't fit"),
    ],
)
def test_a_changed_byte_is_noticed_wherever_it_is(path: Path, offset: int, reason: str) -> None:
    _flip(path, offset)
    with pytest.raises(ModelFormatError, match=reason):
        read_kept(path, "key")


@pytest.mark.parametrize("size", [0, 30, HUGE_PAGE_BYTES + 5])
def test_a_file_that_ends_early_is_noticed(path: Path, size: int) -> None:
    os.truncate(path, size)
    with pytest.raises(ModelFormatError):
        read_kept(path, "key")


def test_weights_of_another_key_are_refused(path: Path) -> None:
    with pytest.raises(ModelFormatError, match="other weights"):
        read_kept(path, "another")


def test_content_is_the_same_mapped_and_read(path: Path, tmp_path: Path) -> None:
    never = tmp_path / "never"
    never.write_text("always madvise [never]")
    fd, size = os.open(path, os.O_RDONLY), 4 * HUGE_PAGE_BYTES
    mapped = mapped_or_read(fd, HUGE_PAGE_BYTES, size, switch=never)
    other = mapped_or_read(fd, HUGE_PAGE_BYTES, size)
    os.close(fd)
    assert np.array_equal(mapped, other)
    assert mapped.tobytes() == path.read_bytes()[HUGE_PAGE_BYTES:][:size]
