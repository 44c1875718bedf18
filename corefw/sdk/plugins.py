"""What any plugin may want: the hook mark, other plugins and choices among them, hints for wrong names,
what this corefw can do, the log."""

from __future__ import annotations

from corefw.interfaces.hooks.marker import hookimpl
from corefw.interfaces.selection import Rejected, Selection
from corefw.observability.logging import plugin_logger as get_logger
from corefw.plugin_system.features import has_feature
from corefw.plugin_system.manager import PluginManager
from corefw.plugin_system.names import suggestion
from corefw.plugin_system.selection import select

__all__ = ["PluginManager", "Rejected", "Selection", "get_logger", "has_feature", "hookimpl", "select", "suggestion"]
