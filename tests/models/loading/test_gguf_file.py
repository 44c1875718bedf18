from __future__ import annotations

import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.errors import ModelFormatError
from corefw.models.loading.gguf_file import GGUFFile, files_shared, has_gguf_magic, shared_file
from tests.models.loading.tiny_gguf import finish

VALUES: dict[str, tuple[str, object]] = {
    "v.uint8": ("add_uint8", 200),
    "v.int8": ("add_int8", -100),
    "v.uint16": ("add_uint16", 60000),
    "v.int16": ("add_int16", -30000),
    "v.uint32": ("add_uint32", 4_000_000_000),
    "v.int32": ("add_int32", -2_000_000_000),
    "v.uint64": ("add_uint64", 2**63 + 1),
    "v.int64": ("add_int64", -(2**62)),
    "v.float32": ("add_float32", 0.5),
    "v.float64": ("add_float64", 0.1),
    "v.bool": ("add_bool", True),
    "v.string": ("add_string", "Grüße, 世界"),
    "v.strings": ("add_array", ["", "a", "ß", "🙂" * 50]),
    "v.ints": ("add_array", [1, -2, 3]),
    "v.floats": ("add_array", [0.5, -1.5]),
    "v.bools": ("add_array", [True, False]),
    "v.nested": ("add_array", [[1, 2], [3]]),
}


def write_small(path: Path, *, alignment: int | None = None) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, (method, value) in VALUES.items():
        getattr(writer, method)(key, value)
    writer.add_tensor("matrix", np.arange(24, dtype=np.float32).reshape(4, 6))
    writer.add_tensor("halves", np.arange(16, dtype=np.float16).reshape(2, 2, 4))
    # The last one fills its alignment exactly, so that the file has no padding at the end.
    writer.add_tensor("blocks", np.zeros((4, 2 * 18), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.add_tensor("last", np.arange(64, dtype=np.float32))
    finish(writer)
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("gguf") / "small.gguf")


@pytest.mark.parametrize("key", VALUES)
def test_every_value_type_is_read_as_it_was_written(small: Path, key: str) -> None:
    value = GGUFFile(small).metadata[key]
    assert value == VALUES[key][1]
    assert type(value) is type(VALUES[key][1])


def test_array_lengths_are_known_without_decoding(small: Path) -> None:
    metadata = GGUFFile(small).metadata
    assert metadata.length("v.strings") == 4
    assert metadata.length("v.string") is None
    assert metadata.length("nowhere") is None


def test_tensors_have_row_major_shapes_and_their_bytes(small: Path) -> None:
    file = GGUFFile(small)
    assert {name: (info.shape, info.type.name) for name, info in file.tensors.items()} == {
        "matrix": ((4, 6), "F32"),
        "halves": ((2, 2, 4), "F16"),
        "blocks": ((4, 64), "Q4_0"),
        "last": ((64,), "F32"),
    }
    assert np.array_equal(file.raw("matrix").view(np.float32), np.arange(24, dtype=np.float32).reshape(4, 6))
    assert file.raw("halves").shape == (4, 8)
    assert file.raw("last").view(np.float32)[0, -1] == 63


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_another_alignment_is_honoured(tmp_path: Path, alignment: int) -> None:
    file = GGUFFile(write_small(tmp_path / "aligned.gguf", alignment=alignment))
    assert file.alignment == alignment
    assert file.raw("last").view(np.float32)[0, -1] == 63


def test_version_2_is_read_like_version_3(small: Path, tmp_path: Path) -> None:
    raw = bytearray(small.read_bytes())
    raw[4:8] = struct.pack("<I", 2)
    path = tmp_path / "v2.gguf"
    path.write_bytes(raw)
    file = GGUFFile(path)
    assert file.version == 2
    assert file.metadata["v.strings"] == VALUES["v.strings"][1]


def test_arrays_are_writable_and_the_file_stays_as_it_was(small: Path) -> None:
    before = small.read_bytes()
    GGUFFile(small).raw("last")[:] = 0
    assert small.read_bytes() == before


def test_magic_is_recognised_and_a_missing_file_is_no_error(small: Path, tmp_path: Path) -> None:
    assert has_gguf_magic(small)
    assert not has_gguf_magic(tmp_path / "missing")
    (tmp_path / "other").write_bytes(b"PK")
    assert not has_gguf_magic(tmp_path / "other")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "is empty"),
        (b"GG", "isn't a GGUF file"),
        (b"\x80\x02pickle", "isn't a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(64), "GGUF version 1"),
        (b"GGUF" + struct.pack("<I", 4) + bytes(64), "GGUF version 4"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(64), "big-endian"),
        (b"GGUF" + struct.pack("<I", 0) + bytes(64), "GGUF version 0"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0) + bytes(64), "number of tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**64 - 1) + bytes(64), "number of metadata keys"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63) + bytes(64), "length of a metadata key"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 70000) + b"k" * 80000, "more than the 65535"),
    ],
)
def test_a_wrong_header_is_refused_with_file_and_reason(tmp_path: Path, header: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(header)
    with pytest.raises(ModelFormatError, match=message) as caught:
        GGUFFile(path)
    assert str(path) in str(caught.value)


def key_value(key: bytes, code: int, payload: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", code) + payload


STRING, ARRAY = 8, 9


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([key_value(b"k", 13, bytes(8))], "unknown value type 13"),
        ([key_value(b"k", 7, b"\x02")], "is a switch"),
        ([key_value(b"k", STRING, struct.pack("<Q", 2) + b"\xff\xfe")], "isn't UTF-8"),
        ([key_value(b"k", STRING, struct.pack("<Q", 2**40))], "length of metadata value k"),
        ([key_value(b"k", ARRAY, struct.pack("<IQ", 4, 2**61))], "length of metadata value k"),
        ([key_value(b"k", ARRAY, struct.pack("<IQ", STRING, 2**61))], "length of metadata value k"),
        ([key_value(b"k", ARRAY, struct.pack("<IQQ", STRING, 1, 2**64 - 1))], "ends inside its last string"),
        ([key_value(b"k", ARRAY, struct.pack("<IQ", 77, 1))], "unknown element type 77"),
        ([key_value(b"k", ARRAY, struct.pack("<IQ", ARRAY, 1) * 9)], "nests arrays deeper"),
        ([key_value(b"k", 0, b"\x01"), key_value(b"k", 0, b"\x01")], "stands twice"),
        ([key_value(b"\xff", 0, b"\x01")], "a metadata key isn't UTF-8"),
        ([key_value(b"general.alignment", 4, struct.pack("<I", 24))], "power of two"),
        ([key_value(b"general.alignment", 4, struct.pack("<I", 0))], "power of two"),
        ([key_value(b"general.alignment", STRING, struct.pack("<Q", 1) + b"x")], "power of two"),
    ],
)
def test_damaged_metadata_is_refused(tmp_path: Path, pairs: list[bytes], message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + b"".join(pairs) + bytes(64))
    with pytest.raises(ModelFormatError, match=message):
        GGUFFile(path)


def test_a_string_of_a_list_that_is_not_utf8_is_refused_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    strings = struct.pack("<IQ", STRING, 2) + struct.pack("<Q", 1) + b"a" + struct.pack("<Q", 1) + b"\xff"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key_value(b"k", ARRAY, strings))
    metadata = GGUFFile(path).metadata
    with pytest.raises(ModelFormatError, match="string 1 of k isn't UTF-8"):
        metadata["k"]


def one_tensor(name: bytes, dimensions: list[int], code: int, offset: int) -> bytes:
    table = struct.pack("<Q", len(name)) + name + struct.pack("<I", len(dimensions))
    table += b"".join(struct.pack("<Q", size) for size in dimensions) + struct.pack("<IQ", code, offset)
    return b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + table + bytes(1024)


@pytest.mark.parametrize(
    ("dimensions", "code", "offset", "message"),
    [
        ([8], 16, 0, r"'w' has the type IQ2_XXS \(16\)"),
        ([8], 99, 0, r"'w' has the type unknown \(99\)"),
        ([8], 0, 7, "isn't a multiple of 32"),
        ([8], 0, 2**40, "ends at byte"),
        ([2**40], 0, 0, "ends at byte"),
        ([2**63, 2**63, 2**63, 2**63], 0, 0, "ends at byte"),
        ([33], 2, 0, "Q4_0 blocks of 32 can't fill"),
        ([0], 0, 0, "can't fill"),
        ([], 0, 0, "0 dimensions"),
        ([1, 1, 1, 1, 1], 0, 0, "5 dimensions"),
    ],
)
def test_a_damaged_tensor_entry_is_refused(
    tmp_path: Path, dimensions: list[int], code: int, offset: int, message: str
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(one_tensor(b"w", dimensions, code, offset))
    with pytest.raises(ModelFormatError, match=message):
        GGUFFile(path)


def test_a_directory_or_missing_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.gguf"):
        with pytest.raises(ModelFormatError, match="can't be read"):
            GGUFFile(path)


def test_a_file_cut_at_any_byte_is_refused(small: Path, tmp_path: Path) -> None:
    raw = small.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(raw)
    opened = []
    with path.open("r+b") as file:
        for length in range(len(raw) - 1, -1, -1):
            file.truncate(length)
            try:
                GGUFFile(path)
            except ModelFormatError:
                continue
            opened.append(length)
    assert opened == []


@settings(deadline=None, derandomize=True, max_examples=400)
@given(data=st.data())
def test_a_file_with_changed_bytes_opens_or_is_refused_and_does_nothing_else(small: Path, data: st.DataObject) -> None:
    raw = bytearray(small.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = small.with_name("changed.gguf")
    path.write_bytes(raw)
    try:
        file = GGUFFile(path)
        values = dict(file.metadata)
        sizes = [file.raw(name).size for name in file.tensors]
    except ModelFormatError:
        return
    assert len(values) == len(file.metadata)
    assert sum(sizes) <= len(raw)


def test_parts_of_a_start_share_a_file_until_it_changes_or_the_start_is_over(tmp_path: Path) -> None:
    path = write_small(tmp_path / "small.gguf")
    with files_shared():
        first = shared_file(str(path))
        assert shared_file(str(path)) is first
        os.utime(path, ns=(1, 1))
        second = shared_file(str(path))
        assert second is not first
        assert shared_file(str(path)) is second
    third = shared_file(str(path))
    assert third is not second
    assert shared_file(str(path)) is not third


def test_a_shared_file_that_is_missing_is_refused_as_any_other(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError):
        GGUFFile(str(tmp_path / "none.gguf"))
    with pytest.raises(ModelFormatError):
        shared_file(str(tmp_path / "none.gguf"))
