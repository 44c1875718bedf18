"""``corefw plugins doctor``: looks for what is wrong with the plugins of this environment. Loads them in a child."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from corefw.plugin_system.allowlist import Allowlist, read_allowlist
from corefw.plugin_system.discovery import FoundPlugin, find_plugins
from corefw.plugin_system.findings import Finding, Kind
from corefw.plugin_system.groups import GROUPS_BY_NAME
from corefw.plugin_system.metadata_check import check_installed, check_project
from corefw.plugin_system.probe import MISSING_IN_CHILD, probe
from corefw.plugin_system.verdicts import State, Verdict, judge

__all__ = ["Examination", "examine"]


# What is incompatible is a finding.
_LEFT_OUT = frozenset({State.NOT_ALLOWED, State.DENIED, State.SHADOWED, State.UNAVAILABLE})


@dataclass(frozen=True, kw_only=True, slots=True)
class Examination:
    """What came of it.

    Attributes:
        findings: what is to be mended.
        num_plugins: that were found.
        num_loaded: of those, how many a child process loaded or tried to.
        left_out: state and reason of what wasn't loaded, and needn't be mended, by ``group: distribution/name``.
    """

    findings: tuple[Finding, ...]
    num_plugins: int
    num_loaded: int
    left_out: dict[str, str]


def examine(allow: str | None, timeout_s: float, project: Path | None = None) -> Examination:
    """Check metadata, then load every plugin that may be loaded in a child process, but for corefw's own.

    Args:
        allow: value of ``--plugins``; None leaves it to ``VLLM_PLUGINS``.
        timeout_s: for each plugin.
        project: folder of a distribution under development, with a ``pyproject.toml``.

    Raises:
        ConfigError: the allowlist is malformed, or the project can't be read.
    """
    allowlist = read_allowlist(allow)
    found = find_plugins()
    verdicts, _ = judge(found, allowlist)
    allowed = [verdict.plugin for verdict in verdicts if verdict.allowed and not verdict.plugin.builtin]
    absent = [plugin for plugin in allowed if not _is_importable(plugin)]
    to_load = [plugin for plugin in allowed if plugin not in absent]
    findings = [
        *check_installed(),
        *(() if project is None else check_project(project)),
        *_unknown_names(allowlist, found),
        *_same_names(verdicts, allowlist),
        *(_incompatible(v) for v in verdicts if v.state is State.INCOMPATIBLE and v.plugin.group in GROUPS_BY_NAME),
        *map(_absent, absent),
        *_load(to_load, timeout_s),
    ]
    return Examination(
        findings=tuple(findings),
        num_plugins=len(found),
        num_loaded=len(to_load),
        left_out={_name(v.plugin): f"{v.state}: {v.reason}" for v in verdicts if v.state in _LEFT_OUT},
    )


def _is_importable(plugin: FoundPlugin) -> bool:
    """Whether the package is there. Only that: looking for what is inside would import it."""
    package = plugin.value.partition(":")[0].partition(".")[0].strip()
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _unknown_names(allowlist: Allowlist, found: Sequence[FoundPlugin]) -> Iterator[Finding]:
    for complaint in allowlist.complaints(found):
        yield Finding(
            kind=Kind.UNKNOWN_NAME,
            what=complaint,
            where=allowlist.source,
            remedy="correct the name, or install the distribution that has it",
        )


def _same_names(verdicts: Sequence[Verdict], allowlist: Allowlist) -> Iterator[Finding]:
    owners: dict[tuple[str, str], list[FoundPlugin]] = {}
    for verdict in verdicts:
        if verdict.allowed:
            owners.setdefault((verdict.plugin.group, verdict.plugin.name), []).append(verdict.plugin)
    for (group, name), plugins in owners.items():
        if len(plugins) > 1:
            yield Finding(
                kind=Kind.SAME_NAME,
                what=f"{len(plugins)} plugins of {group} are called {name!r}, so nothing starts",
                where=" and ".join(map(_origin, plugins)),
                remedy=f"pick one with --plugins +{plugins[-1].full_name} (or in {allowlist.source}), or uninstall one",
            )


def _incompatible(verdict: Verdict) -> Finding:
    return _version(verdict.plugin, verdict.reason)


def _version(plugin: FoundPlugin, reason: str) -> Finding:
    return Finding(
        kind=Kind.API_MISMATCH,
        what=f"{_name(plugin)} is {reason}",
        where=_origin(plugin),
        remedy=f"install a version of {plugin.distribution} that was made for this corefw, or another corefw",
    )


def _absent(plugin: FoundPlugin) -> Finding:
    module = plugin.value.partition(":")[0].strip()
    old = plugin.location is not None and plugin.location.suffix == ".egg-info"
    delete = f"delete {plugin.location}, which nothing belongs to any more, or " if old else ""
    return Finding(
        kind=Kind.NOT_INSTALLED,
        what=f"{_name(plugin)} names the module {module}, which isn't installed in this environment",
        where=_origin(plugin),
        remedy=f"{delete}reinstall {plugin.distribution}",
    )


def _load(plugins: Sequence[FoundPlugin], timeout_s: float) -> Iterator[Finding]:
    for plugin, (state, reason) in probe(plugins, timeout_s).items():
        if state is not State.FAILED:
            continue
        if reason == MISSING_IN_CHILD:
            yield Finding(
                kind=Kind.PROCESSES_DIFFER,
                what=f"{_name(plugin)} is found by this process, and not by a child process",
                where=_origin(plugin),
                remedy="install it, or name its folder in PYTHONPATH: children don't look in the current directory",
            )
        elif "written for version" in reason:
            yield _version(plugin, reason.removeprefix("PluginError: "))
        else:
            kind, remedy = _cause(plugin, reason)
            yield Finding(kind=kind, what=f"{_name(plugin)} fails: {reason}", where=_origin(plugin), remedy=remedy)


def _cause(plugin: FoundPlugin, reason: str) -> tuple[Kind, str]:
    if reason.startswith("PluginError: "):
        group = GROUPS_BY_NAME[plugin.group]
        asked = group.interface or "a hook module, or a function that returns nothing"
        return Kind.WRONG_KIND, f"the group {group.name} asks for {asked}; see docs/plugins.md"
    if reason.startswith("ModuleNotFoundError: "):
        return Kind.IMPORT_ERROR, f"install what is missing, or reinstall {plugin.distribution}"
    kind = Kind.HOOK_FAILS if reason.startswith("hook ") else Kind.IMPORT_ERROR
    return kind, f"correct it, or leave it out with --plugins=-{plugin.full_name}"


def _name(plugin: FoundPlugin) -> str:
    return f"{plugin.group}: {plugin.full_name}"


def _origin(plugin: FoundPlugin) -> str:
    folder = f", {plugin.location}" if plugin.location else ""
    return f"{plugin.distribution} {plugin.version} ({plugin.name} = {plugin.value}{folder})"
