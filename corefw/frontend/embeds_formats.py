"""Reads one array of floats out of a file's bytes: ``.npy``, ``.safetensors``, or ``torch.save`` of a tensor.

Nothing is ever unpickled or evaluated. What ``torch.save`` writes is a zip archive with a pickle in it; that pickle is
compared, opcode by opcode, with the one that a plain tensor has, and its numbers are taken; any other is refused.
"""

from __future__ import annotations

import io
import json
import math
import pickletools
import re
import struct
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["FORMATS", "UnreadableError", "read_floats"]

FORMATS = "the bytes of a .npy file, of a .safetensors file with one tensor, or of torch.save of one tensor"

_Floats = npt.NDArray[np.float32]

_NPY_MAGIC = b"\x93NUMPY"
_NPY_HEADER = re.compile(
    rb"\{\s*'descr':\s*'([^']{1,40})',\s*'fortran_order':\s*(True|False),\s*'shape':\s*\(([0-9, ]{0,80})\),?\s*\}\s*"
)
_ZIP_MAGIC = b"PK\x03\x04"
_ZIP_ENTRY_MAGIC = b"PK\x01\x02"
_MAX_HEADER_BYTES = 4096
_MAX_ENTRIES = 64
_NPY_DTYPES = {"<f4": "float32", "<f2": "float16"}
_SAFETENSORS_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_TORCH_DTYPES = {"FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16"}
_WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2}
_DTYPES_IN_WORDS = "float32, float16 or bfloat16 (.npy: little-endian float32 or float16)"
_MAX_DIM = 2**40
_MAX_DIMS = 32
_NOT_ONE_TENSOR = "its zip archive isn't what torch.save makes of one tensor"
# What zipfile raises for damaged, encrypted and unusual archives, and pickletools for what is no pickle.
_ARCHIVE_ERRORS = (
    zipfile.BadZipFile, struct.error, ValueError, LookupError, EOFError, OSError, RuntimeError, OverflowError,
)  # fmt: skip


class UnreadableError(ValueError):
    """These bytes aren't an array of floats; the text says why, without anything that was in them."""


def read_floats(data: bytes) -> _Floats:
    """The array, exactly, as float32 in rows.

    Raises:
        UnreadableError: none of the formats, damaged, or of another dtype.
    """
    if data.startswith(_NPY_MAGIC):
        return _read_npy(data)
    if data.startswith(_ZIP_MAGIC):
        return _read_torch(data)
    if data[8:9] == b"{":
        return _read_safetensors(data)
    raise UnreadableError(f"it is none of the formats that are read: {FORMATS}")


def _floats(dtype: str | None, shape: tuple[int, ...], data: memoryview) -> _Floats:
    """Exactly so many numbers as the shape says."""
    if dtype is None:
        raise UnreadableError(f"its numbers must be {_DTYPES_IN_WORDS}")
    if len(shape) > _MAX_DIMS:
        raise UnreadableError(f"it has {len(shape)} dimensions")
    if any(extent > _MAX_DIM for extent in shape) or math.prod(shape) * _WIDTHS[dtype] != len(data):
        raise UnreadableError("its data doesn't have the size that its header says; it is cut off or damaged")
    if dtype == "bfloat16":
        halves = np.frombuffer(data, dtype="<u2").astype(np.uint32)
        return (halves << np.uint32(16)).view(np.float32).reshape(shape)
    return np.frombuffer(data, dtype="<f4" if dtype == "float32" else "<f2").astype(np.float32).reshape(shape)


def _read_npy(data: bytes) -> _Floats:
    """Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html"""
    length_bytes = 2 if data[6:7] == b"\x01" else 4
    begin = 8 + length_bytes
    length = int.from_bytes(data[8:begin], "little")
    if length > _MAX_HEADER_BYTES:
        raise UnreadableError("its .npy header is too long for that of one array")
    header = _NPY_HEADER.fullmatch(data[begin : begin + length])
    if header is None:
        raise UnreadableError("its .npy header isn't that of a plain array of floats")
    descr, fortran, extents = header.groups()
    dtype = _NPY_DTYPES.get(descr.decode("ascii", "replace"))
    try:
        shape = tuple(int(extent) for extent in extents.split(b",") if extent.strip())
    except ValueError:
        raise UnreadableError("its .npy header has no valid shape") from None
    body = memoryview(data)[begin + length :]
    if fortran == b"True":
        return np.ascontiguousarray(_floats(dtype, shape[::-1], body).T)
    return _floats(dtype, shape, body)


def _read_safetensors(data: bytes) -> _Floats:
    """Format: https://github.com/huggingface/safetensors#format"""
    length = int.from_bytes(data[:8], "little")
    if length > min(len(data) - 8, _MAX_HEADER_BYTES):
        raise UnreadableError("its .safetensors header is cut off, or too long for that of one tensor")
    try:
        entries = json.loads(data[8 : 8 + length])
        entries.pop("__metadata__", None)
        (entry,) = entries.values()
        dtype, shape, offsets = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        are_sizes = all(type(extent) is int and extent >= 0 for extent in shape)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UnreadableError("its .safetensors header isn't that of exactly one tensor") from None
    if not are_sizes or not isinstance(dtype, str) or offsets != [0, len(data) - 8 - length]:
        raise UnreadableError("its .safetensors header doesn't fit its data; it is cut off or damaged")
    return _floats(_SAFETENSORS_DTYPES.get(dtype), shape, memoryview(data)[8 + length :])


def _read_torch(data: bytes) -> _Floats:
    """Format: a zip archive; see ``torch.serialization``."""
    # The library would make an object of every entry before anybody can count them.
    if data.count(_ZIP_ENTRY_MAGIC) > _MAX_ENTRIES:
        raise UnreadableError(_NOT_ONE_TENSOR)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _read_archive(archive)
    except UnreadableError:
        raise
    except _ARCHIVE_ERRORS as error:
        raise UnreadableError("its zip archive is cut off or damaged") from error


def _read_archive(archive: zipfile.ZipFile) -> _Floats:
    entries = {info.filename.partition("/")[2]: info for info in archive.infolist()}
    pickled = entries.get("data.pkl")
    if pickled is None:
        raise UnreadableError(_NOT_ONE_TENSOR)
    if any(info.compress_type != zipfile.ZIP_STORED for info in entries.values()):
        raise UnreadableError("its zip archive is compressed, which that of torch.save never is")
    if pickled.file_size > _MAX_HEADER_BYTES:
        raise UnreadableError("it has more in it than one plain tensor")
    if "byteorder" in entries and archive.read(entries["byteorder"]) != b"little":
        raise UnreadableError("its numbers are big-endian")
    storage, key, offset, shape, strides = _plain_tensor(archive.read(pickled))
    if (shape[0] > 1 and strides[0] != shape[1]) or (shape[1] > 1 and strides[1] != 1):
        raise UnreadableError("its rows don't follow each other in memory; save tensor.contiguous()")
    stored = archive.read(entries[f"data/{key}"])
    dtype = _TORCH_DTYPES.get(storage)
    width = _WIDTHS.get(dtype or "", 1)
    begin, end = offset * width, (offset + math.prod(shape)) * width
    return _floats(dtype, shape, memoryview(stored)[begin:end])


_Tensor = tuple[str, str, int, tuple[int, int], tuple[int, int]]
_INTEGERS = frozenset({"BININT", "BININT1", "BININT2", "LONG1"})
# They name values for later use, which the pickle of a tensor doesn't make, or frame it.
_SKIPPED = frozenset({"PROTO", "FRAME", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})


def _plain_tensor(pickled: bytes) -> _Tensor:
    """What a tensor's pickle says: storage class, key of the storage, first element, shape, strides."""
    try:
        return _match_tensor((op.name, arg) for op, arg, _ in pickletools.genops(pickled) if op.name not in _SKIPPED)
    except (StopIteration, _MismatchError):
        raise UnreadableError("it isn't one plain tensor [positions, width]; nothing else is ever unpickled") from None


class _MismatchError(Exception):
    """Another pickle than that of a plain tensor."""


def _match_tensor(ops: Iterator[tuple[str, Any]]) -> _Tensor:
    def expect(*names: str, accept: Callable[[Any], bool] = lambda _: True) -> Any:
        name, arg = next(ops)
        if name not in names or not accept(arg):
            raise _MismatchError
        return arg

    def integer() -> int:
        return int(expect(*_INTEGERS, accept=lambda number: 0 <= number <= _MAX_DIM))

    expect("GLOBAL", accept=lambda name: name == "torch._utils _rebuild_tensor_v2")
    expect("MARK")
    expect("MARK")
    expect("BINUNICODE", accept=lambda text: text == "storage")
    storage = str(expect("GLOBAL", accept=lambda name: name.startswith("torch "))).removeprefix("torch ")
    key = str(expect("BINUNICODE"))
    expect("BINUNICODE")  # the device
    integer()  # elements of the storage
    expect("TUPLE")
    expect("BINPERSID")
    offset = integer()
    shape = integer(), integer()
    expect("TUPLE2")
    strides = integer(), integer()
    expect("TUPLE2")
    expect("NEWFALSE", "NEWTRUE")  # requires_grad
    expect("GLOBAL", accept=lambda name: name == "collections OrderedDict")
    for name in ("EMPTY_TUPLE", "REDUCE", "TUPLE", "REDUCE", "STOP"):
        expect(name)
    return storage, key, offset, shape, strides
