from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from corefw.errors import ModelFormatError, ModelSourceError
from corefw.models.loading.model_directory import INDEX_NAME, weight_files
from tests.models.loading.hf_directory import write_directory


def names(root: Path) -> list[str]:
    return [Path(path).name for path in weight_files(root)]


def test_one_file_is_found_whatever_its_name(tmp_path: Path) -> None:
    root = write_directory(tmp_path)
    assert names(root) == ["model.safetensors"]
    (root / "model.safetensors").rename(root / "weights.safetensors")
    assert names(root) == ["weights.safetensors"]


def test_shards_of_the_index_are_found_in_order(tmp_path: Path) -> None:
    root = write_directory(tmp_path, shards=3)
    (root / "consolidated.safetensors").write_bytes(b"another copy")
    assert names(root) == [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


def test_the_only_gguf_file_is_found_and_safetensors_come_first(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert names(tmp_path) == ["a.gguf"]
    write_directory(tmp_path)
    assert names(tmp_path) == ["model.safetensors"]


def test_several_gguf_files_are_left_to_the_user(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelSourceError, match=r"2 GGUF models \(a\.gguf, b\.gguf\); name the file"):
        weight_files(tmp_path)


def test_a_directory_with_one_split_gguf_model_gives_all_its_parts(tmp_path: Path) -> None:
    parts = [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for name in parts:
        (tmp_path / name).write_bytes(b"GGUF")
    assert names(tmp_path) == parts
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelSourceError, match=r"2 GGUF models \(m-00001-of-00003\.gguf, other\.gguf\)"):
        weight_files(tmp_path)
    (tmp_path / parts[1]).unlink()
    with pytest.raises(ModelSourceError, match=r"m-00002-of-00003\.gguf: is missing, part 2 of the 3"):
        weight_files(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    root = write_directory(tmp_path, shards=3)
    (root / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelFormatError, match=r"model-00002-of-00003\.safetensors: is missing"):
        weight_files(root)


def test_shards_without_an_index_are_refused(tmp_path: Path) -> None:
    root = write_directory(tmp_path, shards=2)
    (root / INDEX_NAME).unlink()
    with pytest.raises(ModelFormatError, match=r"no model\.safetensors\.index\.json"):
        weight_files(root)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({}, "'weight_map' is missing"),
        ({"weight_map": {}}, "'weight_map' is missing"),
        ({"weight_map": {"w": "../secret.safetensors"}}, "expected a .safetensors file of the same directory"),
        ({"weight_map": {"w": "/etc/secret.safetensors"}}, "expected a .safetensors file of the same directory"),
        ({"weight_map": {"w": "pytorch_model.bin"}}, "expected a .safetensors file of the same directory"),
        ({"weight_map": {"w": 3}}, "expected a .safetensors file of the same directory"),
        ([1], "holds a JSON list"),
    ],
)
def test_a_damaged_index_is_refused(tmp_path: Path, index: Any, message: str) -> None:
    (tmp_path / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(ModelFormatError, match=message):
        weight_files(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickle_files_are_refused_with_a_remedy(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x02")
    with pytest.raises(ModelFormatError, match="can run code") as caught:
        weight_files(tmp_path)
    assert name in str(caught.value)
    assert "safe_serialization=True" in str(caught.value)


def test_an_empty_directory_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match=r"has no weights; expected \.safetensors files"):
        weight_files(tmp_path)
