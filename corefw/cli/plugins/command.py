"""``corefw plugins``: the table of its actions."""

from __future__ import annotations

import argparse
import importlib

__all__ = ["add_arguments", "run"]

# A module has ``add_arguments(parser)`` and ``run(namespace)``; what is slow to import, it imports when it runs.
_ACTIONS = {
    "list": "every plugin, its state and why",
    "info": "all that is known of one plugin",
    "doctor": "what is wrong with them, where, and what to do",
    "lock": "write down the set of plugins that these settings allow, for --plugin-lock",
    "new": "write a distribution with a plugin that works, to begin from",
    "check": "run the conformance suites on a plugin, or on a project",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of every action."""
    actions = parser.add_subparsers(dest="action", title="actions", metavar="ACTION", required=True)
    for name, text in _ACTIONS.items():
        importlib.import_module(f"corefw.cli.plugins.{name}").add_arguments(actions.add_parser(name, help=text))


def run(namespace: argparse.Namespace) -> int:
    """Run one."""
    status: int = importlib.import_module(f"corefw.cli.plugins.{namespace.action}").run(namespace)
    return status
