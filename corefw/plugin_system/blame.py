"""What went wrong in a plugin, in words, and where in its own code."""

from __future__ import annotations

import traceback
from pathlib import Path

from corefw.plugin_system.discovery import FoundPlugin

__all__ = ["one_line", "place_of", "told"]

_MAX_CHARS = 500


def told(error: BaseException) -> str:
    """``Type: message`` on one short line that can be printed, also of an error that can't tell its own message."""
    try:
        message = str(error)
    except Exception:  # a plugin's own class of errors
        message = "its message can't be made"
    return one_line(f"{type(error).__name__}: {message[:_MAX_CHARS]}")


def one_line(text: str) -> str:
    """What a plugin says of itself, as it can stand in a table or a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:_MAX_CHARS])


def place_of(error: BaseException, plugin: FoundPlugin) -> str:
    """`` (file:line)`` of the last place of the traceback that is in the plugin's package; empty when none is.

    The file is told from the package on.
    """
    if plugin.builtin:  # its package has the loader's own frames, too
        return ""
    package = plugin.value.partition(":")[0].partition(".")[0].strip()
    if isinstance(error, SyntaxError) and error.filename:  # it has no frame: the file never ran
        found = _from_package(error.filename, package)
        if found is not None:
            return f" ({found}:{error.lineno})"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        found = _from_package(frame.filename, package)
        if found is not None:
            return f" ({found}:{frame.lineno})"
    return ""


def _from_package(filename: str, package: str) -> str | None:
    path = Path(filename)
    if path.stem == package:
        return path.name
    parts = path.parts
    return "/".join(parts[parts.index(package) :]) if package in parts else None
