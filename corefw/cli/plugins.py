"""``corefw plugins``: what is installed and why it is, or isn't, in use."""

from __future__ import annotations

import argparse

from corefw import env
from corefw.config.args import UserArgs
from corefw.plugin_system.manager import PluginManager

__all__ = ["list_plugins"]


def list_plugins(namespace: argparse.Namespace) -> int:
    """Print a table by metadata alone: nothing is imported."""
    section = UserArgs.from_namespace(namespace).section("plugins")
    allow = section.get("plugins", env.plugins_allowlist())
    manager = PluginManager.discover(allow, section.get("plugin_policy", "normal"))
    rows = [("GROUP", "NAME", "DISTRIBUTION", "STATE", "REASON"), *manager.report()]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)]
        print("  ".join([*cells, row[4]]).rstrip())
    return 0
