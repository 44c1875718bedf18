"""A GGUF model, mapped: metadata, tensor table, raw tensor bytes. Torch-free.

Specification: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from corefw.config.regular_file import open_regular
from corefw.errors import ModelFormatError
from corefw.models.loading.gguf_metadata import Cursor, Metadata
from corefw.models.loading.gguf_split import check_parts
from corefw.models.loading.gguf_types import TYPE_NAMES, TYPES_BY_CODE, TensorType

__all__ = ["GGUFFile", "TensorInfo", "files_shared", "has_gguf_magic", "shared_file"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_MAX_NAME_BYTES = 1024
_MAX_ALIGNMENT = 1 << 20
_SMALLEST_KEY_VALUE = 13  # empty key (8), type (4), one byte
_SMALLEST_TENSOR_ENTRY = 32  # empty name (8), rank (4), one dimension (8), type (4), offset (8)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of the tensor table.

    Attributes:
        name: as written in the file.
        shape: outermost dimension first; the last one is a row, which blocks run along.
        type: element type.
        offset: first byte, from the beginning of the file that it lies in.
        num_bytes: size in the file.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    num_bytes: int

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)


def has_gguf_magic(path: str | Path) -> bool:
    """Whether a readable file begins like a GGUF file."""
    try:
        with open_regular(Path(path)) as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


class _Part:
    """One file on disk: its bytes, its keys, its tensor table. Everything was checked against the file's size."""

    def __init__(self, path: str) -> None:
        self.view = _map(path)
        cursor = Cursor(self.view, path)
        self.version = _read_version(cursor)
        num_tensors = cursor.count("number of tensors", smallest=_SMALLEST_TENSOR_ENTRY)
        num_keys = cursor.count("number of metadata keys", smallest=_SMALLEST_KEY_VALUE)
        self.metadata = Metadata(cursor, num_keys)
        self.alignment = _alignment(self.metadata, cursor)
        entries = [_read_entry(cursor) for _ in range(num_tensors)]
        self.header_bytes = -(-cursor.position // self.alignment) * self.alignment
        self.tensors: dict[str, TensorInfo] = {}
        for name, shape, kind, offset in entries:
            if name in self.tensors:
                cursor.fail(f"tensor {name[:80]!r} stands twice")
            self.tensors[name] = self._locate(cursor, name, shape, kind, offset)

    def _locate(self, cursor: Cursor, name: str, shape: tuple[int, ...], kind: TensorType, offset: int) -> TensorInfo:
        if offset % self.alignment:
            cursor.fail(f"tensor {name[:80]!r} lies at {offset}, which isn't a multiple of {self.alignment}")
        num_bytes = math.prod(shape) // kind.block_elements * kind.block_bytes
        end = self.header_bytes + offset + num_bytes
        if end > len(self.view):
            cursor.fail(f"tensor {name[:80]!r} ends at byte {end}, but the file has {len(self.view)}")
        return TensorInfo(name, shape, kind, self.header_bytes + offset, num_bytes)


class GGUFFile:
    """An opened GGUF model: one file, or all parts of a split one.

    Args:
        path: the file, or the first part. Files must not be changed while this object or an array from it lives.
        further_parts: the other parts, in order.

    Attributes:
        path: the first file.
        metadata: its keys; further parts have none but those about the split.
        tensors: of all parts.
        header: the first file's bytes before its tensors' data.

    Raises:
        ModelFormatError: not a readable GGUF file, damaged, with a tensor type that can't be read, or parts that don't
            belong together.
    """

    def __init__(self, path: str | Path, *further_parts: str | Path) -> None:
        self.path = str(path)
        paths = [self.path, *map(str, further_parts)]
        parts = [_Part(name) for name in paths]
        check_parts(paths, [part.metadata for part in parts], sum(len(part.tensors) for part in parts))
        self.version = parts[0].version
        self.alignment = parts[0].alignment
        self.metadata = parts[0].metadata
        self.header = parts[0].view[: parts[0].header_bytes]
        self.tensors: dict[str, TensorInfo] = {}
        self._views: dict[str, memoryview] = {}
        for name, part in zip(paths, parts, strict=True):
            twice = next((tensor for tensor in part.tensors if tensor in self.tensors), None)
            if twice is not None:
                raise ModelFormatError(f"{name}: tensor {twice[:80]!r} is in another part too; fetch all parts again")
            self.tensors |= part.tensors
            self._views |= dict.fromkeys(part.tensors, part.view)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor as ``(rows, bytes of a row)``; a view of mapped memory."""
        info = self.tensors[name]
        data = np.frombuffer(self._views[name], np.uint8, info.num_bytes, info.offset)
        return data.reshape(math.prod(info.shape[:-1]), -1)


def _map(path: str) -> memoryview:
    """The file's bytes; copy-on-write, because torch wants writable arrays and the file must not change."""
    try:
        with open_regular(Path(path)) as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    except ValueError as error:
        raise ModelFormatError(f"{path}: the file is empty; fetch it again") from error
    except OSError as error:
        raise ModelFormatError(
            f"{path}: can't be read ({error.strerror}); check the path and its permissions"
        ) from error


def _read_version(cursor: Cursor) -> int:
    magic = bytes(cursor.view[:4])
    if magic != _MAGIC:
        raise ModelFormatError(
            f"{cursor.path}: begins with {magic!r}, not with {_MAGIC!r}, so it isn't a GGUF file; "
            "name a .gguf file or a directory with config.json and .safetensors"
        )
    cursor.position = 4
    version = cursor.u32("the version")
    if version in _VERSIONS:
        return version
    if version and version & 0xFFFF == 0:
        raise ModelFormatError(
            f"{cursor.path}: is a big-endian GGUF file, only little-endian ones can be read; "
            "convert it with gguf-convert-endian of the gguf package"
        )
    raise ModelFormatError(
        f"{cursor.path}: has GGUF version {version}, versions 2 and 3 can be read; convert the model again"
    )


def _alignment(metadata: Metadata, cursor: Cursor) -> int:
    value = metadata.get("general.alignment", 32)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX_ALIGNMENT or value & (value - 1):
        cursor.fail(f"general.alignment is {str(value)[:40]}, expected a power of two up to {_MAX_ALIGNMENT}")
    return value


def _read_entry(cursor: Cursor) -> tuple[str, tuple[int, ...], TensorType, int]:
    name = cursor.string("a tensor name", longest=_MAX_NAME_BYTES)
    label = f"tensor {name[:80]!r}"
    rank = cursor.u32(f"number of dimensions of {label}")
    if not 1 <= rank <= _MAX_DIMENSIONS:
        cursor.fail(f"{label} has {rank} dimensions, expected 1 to {_MAX_DIMENSIONS}")
    # Written innermost first.
    shape = tuple(reversed([cursor.u64(f"shape of {label}") for _ in range(rank)]))
    code = cursor.u32(f"type of {label}")
    offset = cursor.u64(f"offset of {label}")
    kind = _tensor_type(cursor, label, code)
    if min(shape) < 1 or shape[-1] % kind.block_elements:
        cursor.fail(f"{label} has the shape {shape}, which {kind.name} blocks of {kind.block_elements} can't fill")
    return name, shape, kind, offset


def _tensor_type(cursor: Cursor, label: str, code: int) -> TensorType:
    kind = TYPES_BY_CODE.get(code)
    if kind is None:
        known = ", ".join(kind.name for kind in TYPES_BY_CODE.values())
        raise ModelFormatError(
            f"{cursor.path}: {label} has the type {TYPE_NAMES.get(code, 'unknown')} ({code}), which can't be read; "
            f"use a file with these types only: {known}"
        )
    return kind


@contextmanager
def files_shared() -> Iterator[None]:
    """Inside the ``with`` block, in this thread, ``shared_file`` opens each file once.

    Several parts of a start read the same header, and some lists in it are long.
    """
    token = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(token)


def shared_file(*paths: str) -> GGUFFile:
    """The first file and its further parts, as opened before inside ``files_shared`` and unchanged since, else anew."""
    kept = _shared.get()
    if kept is None:
        return GGUFFile(*paths)
    key = tuple((path, _identity(path)) for path in paths)
    if key not in kept:
        kept[key] = GGUFFile(*paths)
    return kept[key]


def _identity(path: str) -> tuple[int, int, int] | None:
    """What changes when a file does; None when there is none."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


_shared: ContextVar[dict[Hashable, GGUFFile] | None] = ContextVar("corefw_shared_gguf_files", default=None)
