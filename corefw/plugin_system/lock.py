"""The lock: a file with the set of plugins that may run, down to the contents of their distributions' files."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from corefw.errors import ConfigError
from corefw.plugin_system.discovery import FoundPlugin

__all__ = [
    "LockedDistribution",
    "differences",
    "distribution_files",
    "lock_of",
    "lock_problems",
    "package_files",
    "read_lock",
    "render_lock",
]

_FORMAT = 1
_BYTECODE = {".pyc", ".pyo"}


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedDistribution:
    """A distribution in a lock.

    Attributes:
        name: normalised.
        version: as installed.
        hash: ``sha256:`` of the names and contents of its files, the same for a wheel and an editable install of one
            source; without metadata folder (as in a zip file) of its version and entry points alone.
        plugins: ``group:name = value`` of each that may be loaded, sorted.
    """

    name: str
    version: str
    hash: str
    plugins: tuple[str, ...]


def lock_of(plugins: Iterable[FoundPlugin]) -> tuple[LockedDistribution, ...]:
    """The lock for a resolved set, by distribution. Reads the distributions' files; imports nothing of them."""
    owned: dict[tuple[str, str], list[FoundPlugin]] = {}
    for plugin in plugins:
        owned.setdefault((plugin.distribution, plugin.version), []).append(plugin)
    return tuple(
        LockedDistribution(
            name=name,
            version=version,
            hash=_hash(members),
            plugins=tuple(sorted(f"{p.group}:{p.name} = {p.value}" for p in members)),
        )
        for (name, version), members in sorted(owned.items())
    )


def render_lock(lock: Iterable[LockedDistribution]) -> str:
    """The text of a lock file; equal for equal sets."""
    return json.dumps({"corefw_plugin_lock": _FORMAT, "distributions": [asdict(d) for d in lock]}, indent=2) + "\n"


def read_lock(file: Path) -> tuple[LockedDistribution, ...]:
    """A lock as ``render_lock`` wrote it.

    Raises:
        ConfigError: it can't be read, or is no lock of this format.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--plugin-lock {str(file)[:200]!r} can't be read: {error}") from None
    try:
        if document["corefw_plugin_lock"] != _FORMAT:
            raise ValueError(f"format {str(document['corefw_plugin_lock'])[:20]}, this corefw reads {_FORMAT}")
        return tuple(_distribution(entry) for entry in document["distributions"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"--plugin-lock {str(file)[:200]!r} is no lock ({type(error).__name__}: {error}); "
            "write one with `corefw plugins lock`"
        ) from None


def differences(locked: Iterable[LockedDistribution], here: Iterable[LockedDistribution]) -> tuple[str, ...]:
    """One sentence for each distribution or plugin that isn't as locked."""
    wanted, found = {d.name: d for d in locked}, {d.name: d for d in here}
    return tuple(
        sentence
        for name in sorted(wanted.keys() | found.keys())
        for sentence in _differences(name, wanted.get(name), found.get(name))
    )


def lock_problems(file: Path, plugins: Iterable[FoundPlugin]) -> tuple[str, ...]:
    """How the plugins that may be loaded differ from a lock file, as one sentence; nothing where they don't.

    Raises:
        ConfigError: see ``read_lock``.
    """
    found = differences(read_lock(file), lock_of(plugins))
    return (f"the plugins aren't those of --plugin-lock {str(file)[:200]!r}: {'; '.join(found)}",) if found else ()


def distribution_files(plugins: Iterable[FoundPlugin]) -> tuple[tuple[str, Path], ...]:
    """Name and place of each file of the plugins' distribution, sorted by name, without metadata and bytecode.

    Of a regular install those that its RECORD lists; of an editable one (its RECORD has none of its modules), and where
    there is no RECORD, all in the packages that the entry points refer to.
    """
    members = tuple(plugins)
    location = members[0].location
    tops = {plugin.value.partition(":")[0].strip().partition(".")[0] for plugin in members}
    try:
        files = dict(_recorded(location)) if location is not None else {}
    except (OSError, ValueError, csv.Error):  # a RECORD that can't be read says nothing
        files = {}
    if not any(name.partition("/")[0].removesuffix(".py") in tops for name in files):
        files = {name: file for top in sorted(tops) for name, file in package_files(top)}
    return tuple(sorted(files.items()))


def _hash(members: list[FoundPlugin]) -> str:
    digest = hashlib.sha256()
    files = distribution_files(members) if members[0].location is not None else ()
    for name, file in files:
        digest.update(f"{name}\0{_content(file)}\n".encode())
    if not files:
        digest.update(members[0].version.encode())
        digest.update("".join(sorted(f"{p.group}:{p.name}={p.value}\n" for p in members)).encode())
    return f"sha256:{digest.hexdigest()}"


def _content(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return "missing"


def _recorded(location: Path) -> Iterator[tuple[str, Path]]:
    record = location / "RECORD"
    if not record.is_file():
        return
    with record.open(encoding="utf-8", newline="") as stream:
        for row in csv.reader(stream):
            # Scripts lie outside and differ with the environment, so does what installers write beside the metadata.
            if (
                row
                and not row[0].startswith(("..", "/", location.name))
                and not row[0].endswith((".pyc", ".pyo", ".pth"))
            ):
                yield row[0], location.parent / row[0]


def package_files(top: str) -> Iterator[tuple[str, Path]]:
    """Name and place of each file of an importable package or module, without bytecode; nothing where there is none."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return
    if spec is None:
        return
    for folder in map(Path, spec.submodule_search_locations or ()):
        for file in folder.rglob("*"):
            if file.is_file() and file.suffix not in _BYTECODE and "__pycache__" not in file.parts:
                yield file.relative_to(folder.parent).as_posix(), file
    if not spec.submodule_search_locations and spec.origin is not None and spec.has_location:
        yield Path(spec.origin).name, Path(spec.origin)


def _distribution(entry: Mapping[str, Any]) -> LockedDistribution:
    values = {name: entry[name] for name in ("name", "version", "hash")}
    if unknown := entry.keys() - {*values, "plugins"}:
        raise ValueError(f"unknown key {min(unknown)[:40]!r}")
    if not all(isinstance(value, str) for value in [*values.values(), *entry["plugins"]]):
        raise TypeError("a value isn't a text")
    return LockedDistribution(**values, plugins=tuple(entry["plugins"]))


def _differences(name: str, wanted: LockedDistribution | None, found: LockedDistribution | None) -> Iterator[str]:
    if found is None:
        yield f"missing: {name} {wanted.version if wanted else ''}"
    elif wanted is None:
        yield f"extra: {name} {found.version} ({', '.join(found.plugins)})"
    elif wanted.version != found.version:
        yield f"version: {name} is {found.version}, locked is {wanted.version}"
    else:
        yield from (f"missing: {name}, {plugin}" for plugin in wanted.plugins if plugin not in found.plugins)
        yield from (f"extra: {name}, {plugin}" for plugin in found.plugins if plugin not in wanted.plugins)
        if wanted.hash != found.hash:
            yield f"hash: the files of {name} {found.version} aren't those that were locked"
