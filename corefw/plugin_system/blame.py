"""Where in a plugin's own code something went wrong."""

from __future__ import annotations

import traceback
from pathlib import Path

from corefw.plugin_system.discovery import FoundPlugin

__all__ = ["place_of"]


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
