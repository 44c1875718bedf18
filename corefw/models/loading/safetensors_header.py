"""Header of a ``.safetensors`` file, checked against its size. Torch-free.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from corefw.config.regular_file import open_regular
from corefw.errors import ModelFormatError

__all__ = ["StoredTensor", "read_safetensors_header"]

_MAX_HEADER_BYTES = 100_000_000  # the format's limit
# Name in the file → (name in a configuration, bytes an element)
_DTYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U64": ("uint64", 8),
    "U32": ("uint32", 4),
    "U16": ("uint16", 2),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of the file: name, dtype as a configuration spells it, shape, bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)


def read_safetensors_header(path: Path) -> dict[str, StoredTensor]:
    """The file's tensors by name.

    Raises:
        ModelFormatError: missing, truncated or damaged.
    """
    raw, data_bytes = _read_raw(path)
    try:
        entries = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "its header isn't valid JSON") from error
    if not isinstance(entries, dict):
        raise _damaged(path, "its header isn't a JSON object")
    entries.pop("__metadata__", None)
    tensors = {name: _tensor(path, name, entry, data_bytes) for name, entry in entries.items()}
    total = sum(tensor.num_bytes for tensor in tensors.values())
    if total != data_bytes:
        raise _damaged(path, f"its tensors take {total} bytes, but it holds {data_bytes}")
    return tensors


def _damaged(path: Path, what: str) -> ModelFormatError:
    return ModelFormatError(f"{path}: {what}; the file is damaged or incomplete, fetch it again")


def _read_raw(path: Path) -> tuple[bytes, int]:
    """The header's bytes, and how many bytes of data follow."""
    try:
        with open_regular(path) as file:
            size = path.stat().st_size
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
                raise _damaged(path, f"its header can't be {length} bytes in a file of {size}")
            return file.read(length), size - 8 - length
    except FileNotFoundError as error:
        raise ModelFormatError(f"{path}: is missing; fetch the whole model directory again") from error
    except OSError as error:
        raise ModelFormatError(f"{path}: can't be read ({error.strerror}); check it and its permissions") from error


def _tensor(path: Path, name: str, entry: Any, data_bytes: int) -> StoredTensor:
    label = f"tensor {name[:80]!r}"
    if not isinstance(entry, dict):
        raise _damaged(path, f"{label} has no description")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ModelFormatError(
            f"{path}: {label} has the dtype {str(dtype)[:20]!r}, which can't be read; known: {', '.join(_DTYPES)}"
        )
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise _damaged(path, f"{label} has no valid shape and data_offsets")
    name_in_config, width = _DTYPES[dtype]
    num_bytes = math.prod(shape) * width
    if offsets[1] - offsets[0] != num_bytes or offsets[1] > data_bytes:
        raise _damaged(path, f"{label} of shape {shape} can't lie at bytes {offsets[0]} to {offsets[1]}")
    return StoredTensor(name, name_in_config, tuple(shape), num_bytes)


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)
