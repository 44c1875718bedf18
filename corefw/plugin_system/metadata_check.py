"""What is wrong with the metadata of installed distributions, and of one that should be. Imports no plugin."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from corefw.errors import ConfigError
from corefw.plugin_system.discovery import API_VERSIONS_GROUP, PRIORITIES_GROUP, parse_priority
from corefw.plugin_system.findings import Finding, Kind
from corefw.plugin_system.groups import GROUPS, GROUPS_BY_NAME, PREFIX
from corefw.plugin_system.installed import Installed, every_installed, find_installed
from corefw.plugin_system.names import normalized_distribution, suggestion

__all__ = ["check_installed", "check_project"]

# Also what lacks the dot is meant for us: ``corefw_platform_plugins``.
_MEANT = PREFIX.rstrip(".")
_DECLARATIONS = (API_VERSIONS_GROUP, PRIORITIES_GROUP)
_KNOWN = frozenset({*(group.removeprefix(PREFIX) for group in _DECLARATIONS), *GROUPS_BY_NAME})

EntryPoints = frozenset[tuple[str, str, str]]


def check_installed() -> Iterator[Finding]:
    """Distributions whose metadata lies on the path twice and differs, and groups that nobody reads."""
    for installed in find_installed(_MEANT):
        then = f"then reinstall {installed.name}"
        yield from _check_groups(installed.entry_points, _where(installed), then)
        yield from _check_declarations(installed.entry_points, _where(installed), then)
    copies: dict[str, list[Installed]] = {}
    for installed in every_installed(PREFIX):
        copies.setdefault(installed.name, []).append(installed)
    for first, *others in copies.values():
        yield from (_stale(first, other) for other in others if _differ(first, other))


def check_project(folder: Path) -> Iterator[Finding]:
    """A distribution under development: whether it is installed, and as it is written now.

    Raises:
        ConfigError: the folder's ``pyproject.toml`` can't be read.
    """
    file = folder / "pyproject.toml"
    project = _project(file)
    name, declared = project.get("name"), frozenset(_declared(project))
    if not isinstance(name, str) or not declared:
        return
    yield from _check_groups(sorted(declared), str(file), "then reinstall it")
    yield from _check_declarations(sorted(declared), str(file), "then reinstall it")
    remedy = f"python -m pip install -e {folder}"
    found = {installed.name: installed for installed in find_installed(PREFIX)}.get(normalized_distribution(name))
    readable = frozenset(item for item in declared if item[0].startswith(PREFIX))
    if found is None:
        what = f"{name} has plugins, and isn't installed in this environment"
        yield Finding(kind=Kind.NOT_INSTALLED, what=what, where=str(file), remedy=remedy)
    elif changed := sorted(readable ^ frozenset(found.entry_points)):
        listed = ", ".join(f"{group}: {entry}" for group, entry, _ in changed[:5])
        what = f"the entry points of {name} aren't those that are installed; they differ in {listed}"
        yield Finding(kind=Kind.STALE_METADATA, what=what, where=f"{file} and {_where(found)}", remedy=remedy)


def _project(file: Path) -> dict[str, Any]:
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} can't be read: {error}") from error
    return project if isinstance(project, dict) else {}


def _declared(project: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    groups = project.get("entry-points")
    for group, entries in groups.items() if isinstance(groups, dict) else ():
        if group.startswith(_MEANT) and isinstance(entries, dict):
            yield from ((group, name, str(value)) for name, value in entries.items())


def _check_groups(entry_points: Iterable[tuple[str, str, str]], where: str, then: str) -> Iterator[Finding]:
    groups = dict.fromkeys(group for group, _, _ in entry_points)
    for group in groups:
        short = group.removeprefix(PREFIX)
        if not group.startswith(PREFIX) or short not in _KNOWN:
            hint = suggestion(PREFIX + short.removeprefix(_MEANT).lstrip("._-"), (g.entry_point_group for g in GROUPS))
            yield Finding(
                kind=Kind.WRONG_GROUP,
                what=f"nobody reads the entry point group {group!r}",
                where=where,
                remedy=f"{hint} rename it, {then}",
            )


def _check_declarations(entry_points: Sequence[tuple[str, str, str]], where: str, then: str) -> Iterator[Finding]:
    """What a distribution says of its plugins beside registering them."""
    groups = {group.removeprefix(PREFIX) for group, _, _ in entry_points if group not in _DECLARATIONS}
    names = {name for group, name, _ in entry_points if group not in _DECLARATIONS}
    for group, name, value in entry_points:
        if group == API_VERSIONS_GROUP and name not in groups:
            what = f"{group} names {name!r}, a group in which the distribution has no plugin"
            remedy = suggestion(name, groups)
        elif group == PRIORITIES_GROUP and name not in names:
            what = f"{group} names {name!r}, which is no plugin of the distribution"
            remedy = suggestion(name, names)
        elif group == PRIORITIES_GROUP and parse_priority(value) is None:
            what = f"{group} says {value[:40]!r} for {name!r}, so it goes as if nothing were said"
            remedy = "write p1 to p9999, smaller for earlier;"
        else:
            continue
        yield Finding(kind=Kind.WRONG_DECLARATION, what=what, where=where, remedy=f"{remedy} {then}")


def _differ(one: Installed, other: Installed) -> bool:
    # An editable install of setuptools has a folder beside the sources and one among the packages: alike, they are one.
    return (one.version, sorted(one.entry_points)) != (other.version, sorted(other.entry_points))


def _stale(first: Installed, other: Installed) -> Finding:
    return Finding(
        kind=Kind.STALE_METADATA,
        what=f"{first.name} lies on the path twice; {first.version} counts and {other.version} is passed over",
        where=f"{first.location} and {other.location}",
        remedy=f"delete the one that is out of date, or run: python -m pip install --force-reinstall {first.name}",
    )


def _where(installed: Installed) -> str:
    return f"{installed.name} {installed.version}" + (f" ({installed.location})" if installed.location else "")
