"""``corefw plugins list``: what is installed and why it is, or isn't, in use."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict

from corefw.config.args import UserArgs, add_flags
from corefw.plugin_system.discovery import FoundPlugin
from corefw.plugin_system.inventory import Inventory, loaded, take_inventory
from corefw.plugin_system.report import format_rows, rows_of

__all__ = ["add_arguments", "add_load_flags", "read_inventory", "run", "tell_problems"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``corefw plugins list``."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_load_flags(parser)
    add_flags(parser, ("plugins",))


def add_load_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that ``read_inventory`` heeds beside the allowlist's."""
    parser.add_argument(
        "--load", action="store_true", help="load in a child process what may be loaded; without, nothing is imported"
    )
    parser.add_argument(
        "--load-timeout", metavar="SECONDS", type=float, default=60.0, help="a plugin that takes longer has failed"
    )


def run(namespace: argparse.Namespace) -> int:
    """Print a table. 1 when a start with these settings would fail."""
    found = read_inventory(namespace)
    rows = rows_of(found.verdicts)
    if namespace.json:
        print(json.dumps({"plugins": [asdict(row) for row in rows], "problems": found.problems}, indent=2))
    else:
        print(format_rows(rows))
    return tell_problems(found.problems)


def read_inventory(namespace: argparse.Namespace, only: Callable[[FoundPlugin], bool] | None = None) -> Inventory:
    """What is installed, with the settings on the command line applied.

    Args:
        only: which of them ``--load`` loads; None for all.
    """
    section = UserArgs.from_namespace(namespace).section("plugins")
    found = take_inventory(section.get("plugins"), section.get("plugin_lock"))
    return loaded(found, namespace.load_timeout, only) if namespace.load else found


def tell_problems(problems: Iterable[str]) -> int:
    """Print them on standard error; the exit status."""
    status = 0
    for problem in problems:
        print(f"corefw plugins: problem: {problem}", file=sys.stderr)
        status = 1
    return status
