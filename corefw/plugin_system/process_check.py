"""Whether the processes of a running server, and this environment, know the same plugins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from corefw.plugin_system.discovery import FoundPlugin
from corefw.plugin_system.findings import Finding, Kind
from corefw.plugin_system.groups import GROUPS_BY_NAME, Process
from corefw.plugin_system.process_report import Fate, PluginSummary
from corefw.plugin_system.verdicts import State

__all__ = ["check_processes"]

_WORKS = frozenset({State.LOADED, State.ACTIVE, State.UNUSED})
_BROKEN = frozenset({State.FAILED, State.UNAVAILABLE, State.NOT_ALLOWED, State.DENIED})

Key = tuple[str, str, str]


def check_processes(
    plugins: Sequence[PluginSummary], missing: Mapping[str, str], found: Sequence[FoundPlugin], url: str
) -> Iterator[Finding]:
    """Compare what the server's processes say with one another, and with what this environment has.

    Args:
        plugins: of the server's report.
        missing: processes that gave no report, and why.
        found: what is installed here.
        url: of the server.
    """
    for process, reason in missing.items():
        what = f"the server's {process} gave no report: {reason}"
        yield Finding(kind=Kind.PROCESSES_DIFFER, what=what, where=url, remedy="ask again, or see the server's log")
    for plugin in plugins:
        yield from _between_processes(plugin, frozenset(missing), url)
    yield from _with_environment(plugins, found, url)


def _between_processes(plugin: PluginSummary, missing: frozenset[str], url: str) -> Iterator[Finding]:
    group = GROUPS_BY_NAME.get(plugin.group)
    both = (Process.FRONT_END, Process.ENGINE_CORE)
    if group is None or missing or not set(both) <= set(group.processes):
        return
    fates = {process: plugin.processes.get(process) for process in both}
    works = [process for process, fate in fates.items() if fate is not None and fate.state in _WORKS]
    broken = {process: fate for process, fate in fates.items() if fate is None or fate.state in _BROKEN}
    for process, fate in broken.items() if works else ():
        yield Finding(
            kind=Kind.PROCESSES_DIFFER,
            what=f"{_name(plugin)} works in the server's {works[0]}, and in its {process} it is {_told(fate)}",
            where=f"{url}, {plugin.distribution} {plugin.version}",
            remedy="make what it needs be there in every process, then restart the server; its log has the cause",
        )


def _told(fate: Fate | None) -> str:
    return "not found" if fate is None else f"{fate.state}: {fate.reason}"


def _with_environment(plugins: Sequence[PluginSummary], found: Sequence[FoundPlugin], url: str) -> Iterator[Finding]:
    served: dict[Key, str] = {(p.group, p.name, p.distribution): p.version for p in plugins}
    here: dict[Key, str] = {(p.group, p.name, p.distribution): p.version for p in found}
    for key in dict.fromkeys((*served, *here)):
        there, local = served.get(key), here.get(key)
        if there == local:
            continue
        group, name, distribution = key
        if there is None:
            what, remedy = f"is installed here ({local}), and the server doesn't know it", "restart the server"
        elif local is None:
            what = f"is known to the server ({there}), and isn't installed here"
            remedy = "run this in the server's environment, or restart the server if it was uninstalled"
        else:
            what, remedy = f"is {local} here, and {there} in the server", "restart the server"
        label = f"{group}: {distribution}/{name}"
        yield Finding(kind=Kind.PROCESSES_DIFFER, what=f"{label} {what}", where=url, remedy=remedy)


def _name(plugin: PluginSummary) -> str:
    return f"{plugin.group}: {plugin.distribution}/{plugin.name}"
