"""Reads the JSON files of a model directory: bounded, and with errors that name the file. Torch-free."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from corefw.config.regular_file import open_regular
from corefw.errors import ModelFormatError

__all__ = ["read_json_object"]

_MAX_BYTES = 256 << 20


def read_json_object(path: Path, *, max_bytes: int = _MAX_BYTES) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ModelFormatError: missing, no regular file, unreadable, too large, not JSON, or not an object.
    """
    try:
        value = json.loads(_read_bounded(path, max_bytes))
    except FileNotFoundError as error:
        raise ModelFormatError(f"{path}: is missing; fetch the whole model directory again") from error
    except OSError as error:
        raise ModelFormatError(f"{path}: can't be read ({error.strerror}); check it and its permissions") from error
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path}: isn't valid JSON ({str(error)[:120]}); fetch it again") from error
    if not isinstance(value, dict):
        raise ModelFormatError(f"{path}: holds a JSON {type(value).__name__}, expected an object; fetch it again")
    return value


def _read_bounded(path: Path, max_bytes: int) -> bytes:
    with open_regular(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ModelFormatError(f"{path}: is larger than {max_bytes >> 20} MiB, that isn't a model's file")
    return data
