"""What became of the plugins in one process, as plain data that crosses process borders; several of those as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from corefw.plugin_system.discovery import CORE_DISTRIBUTION
from corefw.plugin_system.report import report
from corefw.plugin_system.verdicts import State

if TYPE_CHECKING:
    from corefw.plugin_system.manager import PluginManager

__all__ = [
    "Fate",
    "PluginSummary",
    "ProcessReport",
    "Quarantine",
    "ReportedPlugin",
    "ReportedSelection",
    "describe",
    "summaries",
]

# Which state says most of a plugin that has several; those that aren't here come from metadata, the same everywhere.
_TELLING = (State.FAILED, State.ACTIVE, State.UNUSED, State.LOADED, State.UNAVAILABLE)


class ReportedPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """One plugin in one process."""

    group: str
    name: str
    distribution: str
    version: str
    state: str
    reason: str


class ReportedSelection(msgspec.Struct, frozen=True, kw_only=True):
    """One choice, and why the others weren't chosen (name to reason)."""

    what: str
    chosen: str
    reason: str
    rejected: dict[str, str]


class Quarantine(msgspec.Struct, frozen=True, kw_only=True):
    """A contribution of a plugin that isn't called any more: whose (``distribution/name``), by which hook, and why."""

    plugin: str
    hook: str
    reason: str


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """Every plugin, every choice and every quarantined contribution of one process."""

    process: str
    plugins: list[ReportedPlugin]
    selections: list[ReportedSelection]
    quarantined: list[Quarantine]


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a plugin in one process, and why."""

    state: str
    reason: str


class PluginSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One plugin over all processes: the state that says most, and what became of it in each."""

    group: str
    name: str
    distribution: str
    version: str
    state: str
    reason: str
    processes: dict[str, Fate]

    @property
    def builtin(self) -> bool:
        """Whether the core distribution ships it."""
        return self.distribution == CORE_DISTRIBUTION


def describe(manager: PluginManager, process: str) -> ProcessReport:
    """The report of this process, which calls itself ``process``."""
    return ProcessReport(
        process=process,
        plugins=[
            ReportedPlugin(
                group=row.group,
                name=row.name,
                distribution=row.distribution,
                version=row.version,
                state=row.state.value,
                reason=row.reason,
            )
            for row in report(manager)
        ],
        selections=[
            ReportedSelection(
                what=selection.what,
                chosen=selection.chosen,
                reason=selection.reason,
                rejected={rejected.name: rejected.reason for rejected in selection.rejected},
            )
            for selection in manager.selections
        ],
        quarantined=[
            Quarantine(plugin=guarded.owner, hook=guarded.hook, reason=guarded.quarantined or "")
            for guarded in manager.quarantined
        ],
    )


def summaries(reports: Sequence[ProcessReport]) -> Iterator[PluginSummary]:
    """Each plugin once, in the order of the reports."""
    fates: dict[tuple[str, str, str, str], dict[str, Fate]] = {}
    for told in reports:
        for plugin in told.plugins:
            key = (plugin.group, plugin.name, plugin.distribution, plugin.version)
            fates.setdefault(key, {})[told.process] = Fate(state=plugin.state, reason=plugin.reason)
    for (group, name, distribution, version), processes in fates.items():
        telling = min(processes.values(), key=_rank)  # the first of equal ones
        yield PluginSummary(
            group=group,
            name=name,
            distribution=distribution,
            version=version,
            state=telling.state,
            reason=telling.reason,
            processes=processes,
        )


def _rank(fate: Fate) -> int:
    return _TELLING.index(State(fate.state)) if fate.state in _TELLING else len(_TELLING)
