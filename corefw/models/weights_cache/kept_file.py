"""A file of tensors' bytes that is mapped as it is. Torch-free.

The first 2 MiB hold the header, with a hash of its own; what follows are the tensors, with a sum for every piece of
16 MiB. The file is written 2 MiB at a time: file systems that can hold it in pages of that size then do, and processes
that map it share those.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from corefw.errors import ModelFormatError
from corefw.models.weights_cache.memory import HUGE_PAGE_BYTES, mapped_or_read

__all__ = ["KeptWeights", "read_kept", "write_kept"]

Bytes = npt.NDArray[np.uint8]

_MAGIC = b"corefw weights 1"
_SIZE_BYTES, _HASH_BYTES = 8, 32
_HEADER_START = len(_MAGIC) + _SIZE_BYTES + _HASH_BYTES
_MAX_HEADER_BYTES = HUGE_PAGE_BYTES - _HEADER_START
_ALIGNMENT = 64
_SUMMED_BYTES = 8 * HUGE_PAGE_BYTES


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """What a file holds.

    Attributes:
        about: what was written with the tensors, plain data.
        tensors: their bytes, in the order in which they were written; changing them doesn't change the file.
    """

    about: Mapping[str, Any]
    tensors: Sequence[Bytes]

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)


def write_kept(fd: int, key: str, about: Mapping[str, Any], tensors: Sequence[Bytes]) -> None:
    """Write an empty file whole.

    Raises:
        OSError: it can't be written.
        ModelFormatError: there are too many tensors for a header.
    """
    os.lseek(fd, HUGE_PAGE_BYTES, os.SEEK_SET)
    sums: list[int] = []
    for piece in _pieces(tensors):
        sums.append(_sum(piece))
        for start in range(0, len(piece), HUGE_PAGE_BYTES):
            _write_all(fd, piece[start : start + HUGE_PAGE_BYTES].data)
    header = {"key": key, "about": about, "sizes": [tensor.nbytes for tensor in tensors], "sums": sums}
    text = json.dumps(header).encode()
    if len(text) > _MAX_HEADER_BYTES:
        raise ModelFormatError(f"{len(tensors)} tensors are too many for one file")
    os.lseek(fd, 0, os.SEEK_SET)
    begin = _MAGIC + len(text).to_bytes(_SIZE_BYTES, "little") + hashlib.sha256(text).digest()
    _write_all(fd, memoryview(begin + text))
    os.fsync(fd)


def read_kept(path: Path, key: str) -> KeptWeights:
    """Map a file, after every byte of it was checked.

    Raises:
        FileNotFoundError: there is none.
        OSError: it can't be read.
        ModelFormatError: it is damaged, or holds something else.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ModelFormatError("it is no regular file")
        header = _header(fd)
        if header["key"] != key:
            raise ModelFormatError("it holds other weights")
        starts, size = _placed(header["sizes"])
        if found.st_size != HUGE_PAGE_BYTES + size:
            raise ModelFormatError(f"it has {found.st_size} bytes, and should have {HUGE_PAGE_BYTES + size}")
        content = mapped_or_read(fd, HUGE_PAGE_BYTES, size)
    finally:
        os.close(fd)
    pieces = (content[start : start + _SUMMED_BYTES] for start in range(0, size, _SUMMED_BYTES))
    if [_sum(piece) for piece in pieces] != header["sums"]:
        raise ModelFormatError("its sums don't fit its content")
    tensors = [content[start : start + length] for start, length in zip(starts, header["sizes"], strict=True)]
    return KeptWeights(header["about"], tensors)


def _header(fd: int) -> dict[str, Any]:
    begin = os.pread(fd, _HEADER_START, 0)
    size = int.from_bytes(begin[len(_MAGIC) : len(_MAGIC) + _SIZE_BYTES], "little")
    if not begin.startswith(_MAGIC) or size > _MAX_HEADER_BYTES:
        raise ModelFormatError("it doesn't begin as it should")
    text = os.pread(fd, size, _HEADER_START)
    if hashlib.sha256(text).digest() != begin[-_HASH_BYTES:]:
        raise ModelFormatError("its header is damaged")
    header: dict[str, Any] = json.loads(text)
    return header


def _placed(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Where tensors begin, and the size of all."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return starts, end


def _pieces(tensors: Sequence[Bytes]) -> Iterator[Bytes]:
    """The file's content in pieces of the size that sums are made of; each is overwritten by the next."""
    starts, size = _placed(tensor.nbytes for tensor in tensors)
    # Memory of its own: from the heap it would stay with the process.
    memory = mmap.mmap(-1, min(_SUMMED_BYTES, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    piece = np.frombuffer(memory, np.uint8)
    at = 0  # of the piece, in the content
    for start, tensor in zip(starts, tensors, strict=True):
        done = 0
        while done < tensor.nbytes:
            if start + done >= at + len(piece):
                yield piece
                at += len(piece)
                piece = piece[: size - at]
                piece.fill(0)
            offset = start + done - at
            count = min(len(piece) - offset, tensor.nbytes - done)
            piece[offset : offset + count] = tensor[done : done + count]
            done += count
    yield piece


def _sum(piece: Bytes) -> int:
    return int(np.add.reduce(piece.view(np.uint64), dtype=np.uint64))


def _write_all(fd: int, content: memoryview) -> None:
    while content:
        content = content[os.write(fd, content) :]
