"""The launcher of cores on this machine, where its entry point finds it."""

from __future__ import annotations

from corefw.engine.child_launcher import ChildLauncher

__all__ = ["ChildLauncher"]
