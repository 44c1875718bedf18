from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from corefw.errors import ModelFormatError
from corefw.models.loading.gguf_file import GGUFFile
from tests.models.loading.tiny_gguf import exporter_name, exporter_rows, llama_arrays, write_split

ARRAYS = llama_arrays()
COUNTS = (8, 6, len(ARRAYS) - 14)


def test_tensors_of_all_parts_and_keys_of_the_first_make_one_model(tmp_path: Path) -> None:
    file = GGUFFile(*write_split(tmp_path / "m", ARRAYS, counts=COUNTS))
    assert file.metadata["llama.block_count"] == 2
    assert list(file.tensors) == [exporter_name(name) for name in ARRAYS]
    for name, array in ARRAYS.items():
        stored = file.raw(exporter_name(name)).reshape(-1).view(np.float32)
        assert np.array_equal(stored, exporter_rows(name, array).reshape(-1)), name


def test_one_part_alone_is_refused_with_the_names_that_parts_have(tmp_path: Path) -> None:
    parts = write_split(tmp_path / "m", ARRAYS, counts=COUNTS)
    with pytest.raises(ModelFormatError, match=r"one of 3 files of a split model.*NAME-00001-of-00003\.gguf"):
        GGUFFile(parts[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({1: {"split.no": 2}}, r"00002-of-00003\.gguf: says that it is part 2 \(from 0\) of 3.* 1 of 3"),
        ({2: {"split.count": 4}}, r"00003-of-00003\.gguf: says that it is part 2 \(from 0\) of 4"),
        ({0: {"split.tensors.count": 99}}, r"declares 99 tensors, but its 3 parts have 21"),
    ],
)
def test_parts_that_contradict_one_another_are_refused(
    tmp_path: Path, changes: dict[int, dict[str, int]], message: str
) -> None:
    parts = write_split(tmp_path / "m", ARRAYS, counts=COUNTS, changes=changes)
    with pytest.raises(ModelFormatError, match=message):
        GGUFFile(*parts)


def test_a_tensor_that_stands_in_two_parts_is_refused(tmp_path: Path) -> None:
    first = write_split(tmp_path / "a", ARRAYS, counts=COUNTS, changes={0: {"split.tensors.count": 22}})
    second = write_split(tmp_path / "b", ARRAYS, counts=(7, 7, len(ARRAYS) - 14))
    with pytest.raises(ModelFormatError, match=r"b-00002-of-00003\.gguf: tensor .* is in another part too"):
        GGUFFile(first[0], second[1], first[2])
