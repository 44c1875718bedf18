"""``corefw plugins info``: all that is known of one plugin."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import Any

from corefw.cli.plugins.list import add_load_flags, read_inventory
from corefw.config.args import add_flags
from corefw.errors import PluginError
from corefw.plugin_system.allowlist import nearest, parse_item
from corefw.plugin_system.groups import GROUPS_BY_NAME
from corefw.plugin_system.verdicts import Verdict
from corefw.plugin_system.versions import range_text

__all__ = ["add_arguments", "run"]

_MOST_LINES = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``corefw plugins info``."""
    parser.add_argument("name", metavar="NAME", help="name, distribution/name, distribution/* or group:name")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_load_flags(parser)
    add_flags(parser, ("plugins",))


def run(namespace: argparse.Namespace) -> int:
    """Print what is known of each plugin of that name.

    Raises:
        PluginError: there is none.
    """
    item = parse_item(namespace.name, "NAME")
    found = read_inventory(namespace, item.names)
    verdicts = [verdict for verdict in found.verdicts if item.names(verdict.plugin)]
    if not verdicts:
        hint = nearest(item, (verdict.plugin for verdict in found.verdicts))
        raise PluginError(f"no installed plugin is called {item.text[:80]!r}; {hint}")
    described = [_described(verdict, found.verdicts) for verdict in verdicts]
    print(json.dumps(described, indent=2) if namespace.json else "\n\n".join(map(_text, described)))
    return 0


def _described(verdict: Verdict, others: Iterable[Verdict]) -> dict[str, Any]:
    from corefw.plugin_system.lock import distribution_files

    plugin = verdict.plugin
    siblings = [other.plugin for other in others if other.plugin.distribution == plugin.distribution]
    group = GROUPS_BY_NAME.get(plugin.group)
    return {
        "name": plugin.name,
        "group": plugin.group,
        "value": plugin.value,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "state": verdict.state.value,
        "reason": verdict.reason,
        "written for interface": plugin.api_version or "not declared",
        "accepted interface": range_text(group.api_versions) if group else "none",
        "what": group.description if group else "no such group",
        "interface": group.interface if group else None,
        "loads in": [process.value for process in group.processes] if group else [],
        "documentation": group.docs if group else None,
        "metadata": None if plugin.location is None else str(plugin.location),
        "provides": [f"{sibling.group}:{sibling.name}" for sibling in siblings],
        "files": [str(file) for _, file in distribution_files(siblings)],
    }


def _text(described: dict[str, Any]) -> str:
    width = max(map(len, described)) + 2
    lines = []
    for name, value in described.items():
        values = value if isinstance(value, list) else ["none" if value is None else value]
        if len(values) > _MOST_LINES:
            values = [*values[:_MOST_LINES], f"and {len(values) - _MOST_LINES} more, see --json"]
        for index, line in enumerate(values):
            lines.append((f"{name}:" if index == 0 else "").ljust(width) + str(line))
    return "\n".join(lines)
