"""The child process of ``corefw plugins check``: runs suites, and writes a JSON line for each thing that it finds."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from corefw.plugin_system.allowlist import parse_item
from corefw.plugin_system.discovery import FoundPlugin, find_plugins
from corefw.plugin_system.groups import GROUPS_BY_NAME, Process
from corefw.plugin_system.manager import PluginManager
from corefw.plugin_system.verdicts import State, Verdict
from corefw.testing.suite import Suite
from corefw.testing.suite_run import derived_suites, run_suite
from corefw.testing.suites import SUITES, suite_of

__all__ = ["check"]


def check(names: str, tests: Path | None) -> Iterator[dict[str, Any]]:
    """Check the installed plugins that ``names`` means: ``name``, ``distribution/name``, ``distribution/*``.

    Args:
        tests: folder with the distribution's own tests; where they derive the right suite for a plugin, it is taken.

    Yields:
        ``{"plugin": …}``, then its ``{"case": …}``; ``{"problem": …}`` for what isn't about a plugin.
    """
    item = parse_item(names, "NAME")
    chosen = [plugin for plugin in find_plugins() if item.names(plugin)]
    suites, problems = derived_suites(tests) if tests is not None and tests.is_dir() else ([], [])
    yield from ({"problem": problem} for problem in problems)
    verdicts = [Verdict(plugin=plugin, state=State.FOUND, reason="asked for") for plugin in chosen]
    manager = PluginManager(verdicts, source="", policy="normal")
    for plugin in chosen:
        yield {"plugin": {"name": plugin.name, "group": plugin.group, "distribution": plugin.distribution}}
        yield from _cases(plugin, manager, suites)


def _cases(plugin: FoundPlugin, manager: PluginManager, suites: Iterable[type[Suite]]) -> Iterator[dict[str, Any]]:
    group = GROUPS_BY_NAME.get(plugin.group)
    if group is None or group.reserved or plugin.group not in SUITES:
        reason = "no such group" if group is None else "its consumer isn't built yet: the group is reserved"
        yield _case("its group is in use", "fails", reason)
        return
    state, reason = manager.attempt(plugin, Process.CLI)
    if state is not State.LOADED:
        yield _case("it loads", "not checked" if state is State.UNAVAILABLE else "fails", reason)
        return
    yield _case("it loads", "holds")
    outcome = manager.outcome(plugin)
    value = None if outcome is None else outcome.value
    suite = _suite_for(value, plugin, suites)
    for case in run_suite(suite):
        yield {"case": asdict(case)}


def _suite_for(value: Any, plugin: FoundPlugin, suites: Iterable[type[Suite]]) -> type[Suite]:
    wanted = suite_of(plugin.group)
    for suite in suites:
        if issubclass(suite, wanted) and suite.plugin is value:
            return suite
    return type(f"Check{wanted.__name__}", (wanted,), {"plugin": value, "plugin_name": plugin.name})


def _case(what: str, result: str, reason: str = "") -> dict[str, Any]:
    return {"case": {"what": what, "result": result, "reason": reason, "where": ""}}


def _main(tell: Path, names: str, tests: str) -> None:
    with tell.open("w", encoding="utf-8") as out:
        for found in check(names, Path(tests) if tests else None):
            print(json.dumps(found), file=out, flush=True)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
