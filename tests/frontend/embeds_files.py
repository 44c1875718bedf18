"""Files with embeddings, good and bad ones."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

WIDTH = 48


def npy(array: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def torch_save(value: object, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def safetensors(**tensors: torch.Tensor) -> bytes:
    return save(tensors)


def npy_with_header(header: str, body: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode("latin-1") + body


def safetensors_with_header(header: object, body: bytes = b"") -> bytes:
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + body


def rezipped(data: bytes, changes: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """The archive again, with other contents under the names that end so."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w", compression) as new:
        for info in old.infolist():
            content = next((value for end, value in changes.items() if info.filename.endswith(end)), old.read(info))
            new.writestr(info.filename, content)
    return file.getvalue()


def zip_directory(num_entries: int) -> bytes:
    """An archive that is nothing but its directory."""
    entry = b"PK\x01\x02" + struct.pack("<6H3I5H2I", 20, 20, *[0] * 7, 1, *[0] * 6) + b"a"
    directory = entry * num_entries
    end = struct.pack("<4H2IH", 0, 0, min(num_entries, 65535), min(num_entries, 65535), len(directory), 4, 0)
    return b"PK\x03\x04" + directory + b"PK\x05\x06" + end


class Exploit:
    """What unpickling it would call."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('unpickled')",)


def _bad() -> dict[str, bytes]:
    good = np.zeros((5, WIDTH), np.float32)
    tensor = torch.zeros(5, WIDTH)
    saved, stored = torch_save(tensor), safetensors(x=tensor)
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }"
    entry = {"dtype": "F32", "shape": [5, WIDTH], "data_offsets": [0, good.nbytes]}
    return {
        "nothing": b"",
        "a text": b"these are no embeddings",
        "a pickle": pickle.dumps(good),
        "a pickle that runs code": pickle.dumps(Exploit()),
        "an old torch file": torch_save(tensor, _use_new_zipfile_serialization=False),
        "npy, cut off": npy(good)[:-1],
        "npy, too long": npy(good) + b"\0",
        "npy, only its magic": b"\x93NUMPY",
        "npy of objects": npy(np.array([[Exploit()]], dtype=object), allow_pickle=True),
        "npy of float64": npy(good.astype(np.float64)),
        "npy of whole numbers": npy(good.astype(np.int32)),
        "npy, big-endian": npy(good.astype(">f4")),
        "npy of records": npy(np.zeros(3, dtype=[("a", "<f4")])),
        "npy, a huge shape": npy_with_header(header % f"{10**9}, {10**9}"),
        "npy, a shape of 70 digits": npy_with_header(header % f"{10**69}, 1"),
        "npy, a bracket too many": npy_with_header("(" * 4000),
        "npy, a huge header": npy_with_header(header % "5, 48" + " " * 60000, good.tobytes()),
        "npy, a header with code": npy_with_header("{'descr': __import__('os').getcwd()}"),
        "npy, blanks in a number": npy_with_header(header % "4 8, 5"),
        "npy, zero rows": npy(good[:0]),
        "npy, wrong width": npy(good[:, 1:].copy()),
        "npy, one dimension": npy(good[0]),
        "npy, no dimension": npy(np.float32(1.0)),
        "npy, three dimensions": npy(good[None]),
        "npy with NaN": npy(np.where(np.arange(WIDTH) == 7, np.nan, good).astype(np.float32)),
        "npy with an infinity": npy(np.where(np.arange(WIDTH) == 7, -np.inf, good).astype(np.float32)),
        "safetensors, two tensors": safetensors(x=tensor, y=tensor.clone()),
        "safetensors, no tensor": safetensors_with_header({}),
        "safetensors of float64": safetensors(x=tensor.double()),
        "safetensors, cut off": stored[:-1],
        "safetensors, only its length": stored[:9],
        "safetensors, a huge header": struct.pack("<Q", 2**63) + b"{}",
        "safetensors, header of a list": safetensors_with_header([1]),
        "safetensors, offsets outside": safetensors_with_header(
            {"x": {**entry, "data_offsets": [8, good.nbytes + 8]}}, good.tobytes()
        ),
        "safetensors, a negative extent": safetensors_with_header({"x": {**entry, "shape": [-5, -48]}}, good.tobytes()),
        "safetensors, an extent that is text": safetensors_with_header({"x": {**entry, "shape": "5"}}, good.tobytes()),
        "safetensors, a hundred dimensions": safetensors_with_header(
            {"x": {**entry, "shape": [1] * 100, "data_offsets": [0, 4]}}, b"\0" * 4
        ),
        "safetensors, nested": safetensors_with_header({"x": {"y": {"z": [[[[]]]]}}}),
        "torch, a list of tensors": torch_save([tensor]),
        "torch, a module": torch_save(torch.nn.Linear(2, 2)),
        "torch, a parameter": torch_save(torch.nn.Parameter(tensor)),
        "torch, a tensor of float64": torch_save(tensor.double()),
        "torch, three dimensions": torch_save(tensor[None]),
        "torch, columns": torch_save(torch.zeros(WIDTH, 5).t()),
        "torch, sparse": torch_save(tensor.to_sparse()),
        "torch, code": rezipped(saved, {"data.pkl": pickle.dumps(Exploit(), protocol=2)}),
        "torch, no pickle in it": rezipped(saved, {"data.pkl": b"\xff\xff"}),
        "torch, a long pickle": rezipped(saved, {"data.pkl": pickle.dumps([0] * 9000, protocol=2)}),
        "torch, a short storage": rezipped(saved, {"data/0": b"\0" * 8}),
        "torch, big-endian": rezipped(saved, {"byteorder": b"big"}),
        "torch, compressed": rezipped(saved, {}, zipfile.ZIP_DEFLATED),
        "torch, cut off": saved[:-40],
        "torch, a directory of many entries": zip_directory(num_entries=1000),
        "another zip archive": rezipped(saved, {})[:30] + b"\0" * 200,
    }


# No file of embeddings of this width.
BAD = _bad()
