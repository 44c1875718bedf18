"""``corefw plugins list``: what is installed and why it is, or isn't, in use."""

from __future__ import annotations

import argparse
import sys

from corefw.config.args import UserArgs, add_flags
from corefw.plugin_system.report import format_rows, survey

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``corefw plugins list``."""
    add_flags(parser, ("plugins",))


def run(namespace: argparse.Namespace) -> int:
    """Print a table by metadata alone: nothing is imported. 1 when a start with these settings would fail."""
    section = UserArgs.from_namespace(namespace).section("plugins")
    found = survey(section.get("plugins"))
    print(format_rows(found.rows))
    for problem in found.problems:
        print(f"corefw plugins: problem: {problem}", file=sys.stderr)
    return 1 if found.problems else 0
