"""Which distributions are installed, read off the names of their metadata folders.

``importlib.metadata`` opens and parses a file of each distribution to learn its name, and its import alone takes longer
than all that is here. It is asked only about path entries that aren't folders (zip files) and about other finders.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from corefw.plugin_system.names import normalized_distribution

if TYPE_CHECKING:
    from importlib.metadata import Distribution

__all__ = ["Installed", "every_installed", "find_installed"]

_ENTRY_POINTS = "entry_points.txt"
_MAX_BYTES = 4 * 1024 * 1024
_SUFFIXES = (".dist-info", ".egg-info")
# ``importlib_metadata`` adds a finder that looks where we look.
_BACKPORT = "importlib_metadata"


@dataclass(frozen=True, slots=True)
class Installed:
    """A distribution that has entry points.

    Attributes:
        name: normalised.
        version: as installed; ``unknown`` where no name and no file tells.
        location: its metadata folder; None where it has none on disk.
        entry_points: group, name and value of each, as written.
    """

    name: str
    version: str
    location: Path | None
    entry_points: tuple[tuple[str, str, str], ...]


def find_installed(prefix: str, path: Iterable[str] | None = None) -> Iterator[Installed]:
    """The distributions that have entry points in groups of that prefix, in the order of the path.

    Of several with one name the first on the path counts, as it does for imports; the others are passed over, whether
    or not it has entry points.

    Args:
        prefix: beginning of the groups that are of interest, such as ``corefw.``.
        path: folders to look in; ``sys.path`` when None.
    """
    seen: set[str] = set()
    for entry in _entries(path):
        yield from _new(_in_folder(entry, prefix) if os.path.isdir(entry or ".") else _elsewhere([entry], prefix), seen)  # noqa: PTH112 - a path entry may be empty
    if path is None and (finders := _other_finders()):
        yield from _new(_from_finders(finders, prefix), seen)


def every_installed(prefix: str, path: Iterable[str] | None = None) -> Iterator[Installed]:
    """As ``find_installed``, with those as well that are passed over, of all folders on the path."""
    for entry in _entries(path):
        if os.path.isdir(entry or "."):  # noqa: PTH112 - a path entry may be empty
            yield from (installed for _, installed in _in_folder(entry, prefix) if installed is not None)


def _entries(path: Iterable[str] | None) -> Iterable[str]:
    # Whatever else is in ``sys.path``, such as a Path, imports pass over, too.
    return dict.fromkeys(entry for entry in (sys.path if path is None else path) if isinstance(entry, str))


Found = tuple[str, "Installed | None"]
"""A distribution's normalised name, and what it is when it has entry points for us."""


def _new(found: Iterable[Found], seen: set[str]) -> Iterator[Installed]:
    for name, installed in found:
        if name not in seen:
            seen.add(name)
            if installed is not None:
                yield installed


def _in_folder(entry: str, prefix: str) -> Iterator[Found]:
    try:
        children = sorted(os.listdir(entry or "."))  # noqa: PTH208 - thousands of names, no need for objects
    except OSError:
        return
    folder = Path(entry or ".")
    # A modern metadata folder beside an old one of the same distribution counts.
    for suffix in _SUFFIXES:
        for child in children:
            # What an installer couldn't delete it leaves under a name that begins with a tilde.
            if child.lower().endswith(suffix) and not child.startswith("~"):
                yield _from_metadata(folder / child, child[: -len(suffix)], prefix)
    if entry.lower().endswith(".egg") and "EGG-INFO" in children:
        yield _from_metadata(folder / "EGG-INFO", folder.name[: -len(".egg")], prefix)


def _from_metadata(location: Path, stem: str, prefix: str) -> Found:
    """``stem`` is ``name-version``, for eggs with tags after it; what isn't so is looked up inside."""
    name, _, rest = stem.partition("-")
    version = rest.partition("-")[0]
    entry_points = tuple(_parsed(_text(location / _ENTRY_POINTS), prefix))
    if not entry_points and (version[:1].isdecimal() or not rest):
        return normalized_distribution(name), None
    if not version[:1].isdecimal():
        name, version = _stated(location, "Name") or name, _stated(location, "Version") or "unknown"
    name = normalized_distribution(name)
    return name, Installed(name, version, location, entry_points) if entry_points else None


def _stated(location: Path, field: str) -> str | None:
    return _field(_text(location / "METADATA") or _text(location / "PKG-INFO"), field)


def _field(metadata: str, field: str) -> str | None:
    header = metadata.replace("\r\n", "\n").partition("\n\n")[0]
    found = re.search(rf"^{field}:[ \t]*(\S+)", header, re.MULTILINE)
    return found.group(1) if found else None


def _text(file: Path) -> str:
    """What a file of metadata says; nothing where it can't be read, or is no file or none of metadata's size."""
    try:
        described = file.stat()
        if not stat.S_ISREG(described.st_mode) or described.st_size > _MAX_BYTES:
            return ""
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _parsed(text: str, prefix: str) -> Iterator[tuple[str, str, str]]:
    if prefix not in text:
        return
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif group.startswith(prefix) and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield group, name.strip(), value.strip()


def _elsewhere(path: list[str], prefix: str) -> Iterator[Found]:
    """What ``importlib.metadata`` knows of a path entry that is no folder, such as a zip file."""
    if not os.path.exists(path[0]):  # noqa: PTH110 - most entries that aren't folders aren't there at all
        return
    from importlib.metadata import Distribution

    for distribution in Distribution.discover(path=path):
        yield _from_distribution(distribution, prefix)


def _from_finders(finders: list[object], prefix: str) -> Iterator[Found]:
    from importlib.metadata import DistributionFinder

    for finder in finders:
        for distribution in finder.find_distributions(DistributionFinder.Context()):  # type: ignore[attr-defined]
            yield _from_distribution(distribution, prefix)


def _from_distribution(distribution: Distribution, prefix: str) -> Found:
    header = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    name = normalized_distribution(_field(header, "Name") or "unknown")
    entry_points = tuple(_parsed(distribution.read_text(_ENTRY_POINTS) or "", prefix))
    version = _field(header, "Version") or "unknown"
    return name, Installed(name, version, None, entry_points) if entry_points else None


def _other_finders() -> list[object]:
    return [
        finder
        for finder in sys.meta_path
        if hasattr(finder, "find_distributions")
        and finder is not PathFinder
        and not type(finder).__module__.startswith(_BACKPORT)
    ]
