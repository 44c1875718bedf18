from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from corefw.errors import ModelFormatError
from corefw.models.loading.safetensors_header import read_safetensors_header


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    arrays = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(5, np.float16), "empty": np.zeros(0, np.int64)}
    save_file(arrays, path, metadata={"format": "pt"})
    return path


def with_header(path: Path, header: Any, data: bytes = bytes(8)) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return path


def test_tensors_are_listed_with_dtype_and_shape(stored: Path) -> None:
    header = read_safetensors_header(stored)
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in header.items()} == {
        "a": ("float32", (2, 3)),
        "b": ("float16", (5,)),
        "empty": ("int64", (0,)),
    }


def test_a_file_cut_at_any_byte_is_refused(stored: Path) -> None:
    raw = stored.read_bytes()
    opened = []
    for length in range(len(raw)):
        stored.write_bytes(raw[:length])
        try:
            read_safetensors_header(stored)
        except ModelFormatError:
            continue
        opened.append(length)
    assert opened == []


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"[1", "isn't valid JSON"),
        (b"[" * 100_000, "isn't valid JSON"),
        ([1], "isn't a JSON object"),
        ({"w": 1}, "'w' has no description"),
        ({"w": {"dtype": "Q4", "shape": [1], "data_offsets": [0, 8]}}, "'w' has the dtype 'Q4'"),
        ({"w": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, "no valid shape"),
        ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}, "no valid shape"),
        ({"w": {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}}, "no valid shape"),
        ({"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, "can't lie at bytes 0 to 8"),
        ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}, "can't lie at bytes 8 to 16"),
        ({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, "take 4 bytes, but it holds 8"),
    ],
)
def test_a_damaged_header_is_refused_with_file_and_reason(tmp_path: Path, header: Any, message: str) -> None:
    path = with_header(tmp_path / "bad.safetensors", header)
    with pytest.raises(ModelFormatError, match=message) as caught:
        read_safetensors_header(path)
    assert str(path) in str(caught.value)


def test_an_absurd_header_length_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(b"\xff" * 8 + bytes(100))
    with pytest.raises(ModelFormatError, match="its header can't be 18446744073709551615 bytes"):
        read_safetensors_header(path)
    with pytest.raises(ModelFormatError, match="is missing"):
        read_safetensors_header(tmp_path / "nowhere.safetensors")
