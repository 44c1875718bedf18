"""``corefw plugins lock``: write down the set of plugins that these settings allow."""

from __future__ import annotations

import argparse
from pathlib import Path

from corefw.config.args import UserArgs, add_flags
from corefw.errors import ConfigError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``corefw plugins lock``."""
    parser.add_argument("file", metavar="FILE", nargs="?", default="-", help="where to; default: standard output")
    add_flags(parser, ("plugins",))


def run(namespace: argparse.Namespace) -> int:
    """Write the lock; nothing is written where a start with these settings would fail."""
    from corefw.plugin_system.lock import lock_of, render_lock
    from corefw.plugin_system.manager import PluginManager

    section = UserArgs.from_namespace(namespace).section("plugins")
    manager = PluginManager.discover(section.get("plugins"), section.get("plugin_policy", "normal"))
    text = render_lock(lock_of(verdict.plugin for verdict in manager.verdicts if verdict.allowed))
    if namespace.file == "-":
        print(text, end="")
        return 0
    try:
        Path(namespace.file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the lock can't be written: {error}") from None
    return 0
