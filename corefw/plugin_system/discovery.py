"""Finds plugins by their distributions' metadata. Imports no plugin; the only caller of ``importlib.metadata``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points

from corefw.plugin_system.groups import PREFIX
from corefw.plugin_system.names import normalized_distribution

__all__ = ["API_VERSIONS_GROUP", "CORE_DISTRIBUTION", "FoundPlugin", "find_plugins"]

CORE_DISTRIBUTION = "corefw"
API_VERSIONS_GROUP = PREFIX + "api_versions"
"""Entry points here name a group and the interface version the distribution was written for (``v1``)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundPlugin:
    """What metadata says of a plugin.

    Attributes:
        group: without the prefix ``corefw.``; may be one that this corefw doesn't know.
        name: unique in its group among what may be loaded.
        value: ``module:attribute`` of the entry point.
        distribution: normalised name of the distribution.
        version: of the distribution.
        api_version: interface version the distribution declares for the group, None when it declares none.
    """

    group: str
    name: str
    value: str
    distribution: str
    version: str
    api_version: str | None = None
    entry_point: EntryPoint = field(compare=False, repr=False)

    @property
    def builtin(self) -> bool:
        """Whether the core distribution ships it."""
        return self.distribution == CORE_DISTRIBUTION

    @property
    def full_name(self) -> str:
        """``distribution/name``."""
        return f"{self.distribution}/{self.name}"


def find_plugins() -> tuple[FoundPlugin, ...]:
    """Every plugin of every installed distribution, built-ins first, then by group, name and distribution.

    A distribution whose metadata lies on the path twice (an editable install beside an old ``.egg-info``) counts once:
    the first on the path wins, as it does for imports.
    """
    installed = entry_points()
    ours = [group for group in installed.groups if group.startswith(PREFIX)]
    found = {group: list(installed.select(group=group)) for group in ours}
    declared = {(_distribution(e)[0], e.name): e.value for e in found.pop(API_VERSIONS_GROUP, [])}
    plugins = (_plugin(entry_point, declared) for entries in found.values() for entry_point in entries)
    return tuple(sorted(_unique(plugins), key=_order))


def _plugin(entry_point: EntryPoint, declared: dict[tuple[str, str], str]) -> FoundPlugin:
    distribution, version = _distribution(entry_point)
    group = entry_point.group.removeprefix(PREFIX)
    return FoundPlugin(
        group=group,
        name=entry_point.name,
        value=entry_point.value,
        distribution=distribution,
        version=version,
        api_version=declared.get((distribution, group)),
        entry_point=entry_point,
    )


def _distribution(entry_point: EntryPoint) -> tuple[str, str]:
    # Reading name and version parses METADATA: done for distributions that have plugins for us, and for no other.
    if entry_point.dist is None:
        return "unknown", "unknown"
    return normalized_distribution(entry_point.dist.name), entry_point.dist.version


def _unique(plugins: Iterable[FoundPlugin]) -> Iterable[FoundPlugin]:
    return dict.fromkeys(plugins)


def _order(plugin: FoundPlugin) -> tuple[bool, str, str, str, str]:
    return (not plugin.builtin, plugin.group, plugin.name, plugin.distribution, plugin.value)
