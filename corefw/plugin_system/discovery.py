"""Finds plugins by their distributions' metadata. Imports no plugin."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from corefw.plugin_system.groups import PREFIX
from corefw.plugin_system.installed import Installed, find_installed

__all__ = [
    "API_VERSIONS_GROUP",
    "CORE_DISTRIBUTION",
    "PRIORITIES_GROUP",
    "FoundPlugin",
    "find_plugins",
    "parse_priority",
]

CORE_DISTRIBUTION = "corefw"
API_VERSIONS_GROUP = PREFIX + "api_versions"
"""Entry points here name a group and the interface versions the distribution works with (``v1``, ``v1:v2``)."""

PRIORITIES_GROUP = PREFIX + "priorities"
"""Entry points here name a plugin of the distribution and its place among those of its group (``p10``)."""

_DECLARATIONS = (API_VERSIONS_GROUP, PRIORITIES_GROUP)
_DEFAULT_PRIORITY = 50
_PRIORITY = re.compile(r"p(\d{1,4})")


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundPlugin:
    """What metadata says of a plugin.

    Attributes:
        group: without the prefix ``corefw.``; may be one that this corefw doesn't know.
        name: unique in its group among what may be loaded.
        value: ``module:attribute`` of the entry point.
        distribution: normalised name of the distribution.
        version: of the distribution.
        api_version: interface versions that the distribution declares for the group (``v1``, ``v1:v2``), None when it
            declares none.
        priority: plugins of a group go in rising order of it; 50 where nothing that can be read is declared.
        location: metadata folder of the distribution; None where there is none on disk.
    """

    group: str
    name: str
    value: str
    distribution: str
    version: str
    api_version: str | None = None
    priority: int = _DEFAULT_PRIORITY
    location: Path | None = field(default=None, compare=False, repr=False)

    @property
    def builtin(self) -> bool:
        """Whether the core distribution ships it."""
        return self.distribution == CORE_DISTRIBUTION

    @property
    def full_name(self) -> str:
        """``distribution/name``."""
        return f"{self.distribution}/{self.name}"


def find_plugins() -> tuple[FoundPlugin, ...]:
    """Every plugin of every installed distribution, built-ins first, then by group, priority, name and distribution.

    A distribution whose metadata lies on the path twice (an editable install beside an old ``.egg-info``) counts once:
    the first on the path wins, as it does for imports.
    """
    plugins = (plugin for installed in find_installed(PREFIX) for plugin in _plugins(installed))
    return tuple(sorted(dict.fromkeys(plugins), key=_order))


def _plugins(installed: Installed) -> Iterable[FoundPlugin]:
    versions, priorities = (
        {name: value for group, name, value in installed.entry_points if group == declaration}
        for declaration in _DECLARATIONS
    )
    for group, name, value in installed.entry_points:
        if group not in _DECLARATIONS:
            short = group.removeprefix(PREFIX)
            yield FoundPlugin(
                group=short,
                name=name,
                value=value,
                distribution=installed.name,
                version=installed.version,
                api_version=versions.get(short),
                priority=parse_priority(priorities.get(name, "")) or _DEFAULT_PRIORITY,
                location=installed.location,
            )


def parse_priority(declared: str) -> int | None:
    """``p10`` as an entry point of ``corefw.priorities`` has it, at least 1; else None."""
    found = _PRIORITY.fullmatch(declared.strip())
    return None if found is None else int(found.group(1)) or None


def _order(plugin: FoundPlugin) -> tuple[bool, str, int, str, str, str]:
    return (not plugin.builtin, plugin.group, plugin.priority, plugin.name, plugin.distribution, plugin.value)
