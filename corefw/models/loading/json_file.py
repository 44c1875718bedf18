"""Reads the JSON files of a model directory: bounded, and with errors that name the file. Torch-free."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from corefw.errors import ModelFormatError

__all__ = ["read_json_object"]

_MAX_BYTES = 256 << 20


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ModelFormatError: missing, unreadable, too large, not JSON, or not an object.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ModelFormatError(f"{path}: is larger than {_MAX_BYTES >> 20} MiB, that isn't a model's file")
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ModelFormatError(f"{path}: is missing; fetch the whole model directory again") from error
    except OSError as error:
        raise ModelFormatError(f"{path}: can't be read ({error.strerror}); check its permissions") from error
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path}: isn't valid JSON ({str(error)[:120]}); fetch it again") from error
    if not isinstance(value, dict):
        raise ModelFormatError(f"{path}: holds a JSON {type(value).__name__}, expected an object; fetch it again")
    return value
