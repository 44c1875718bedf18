"""What general plugins declare, for a command that goes on without those that take too long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from corefw.plugin_system.settings import declared_sections

if TYPE_CHECKING:
    from corefw.plugin_system.discovery import FoundPlugin
    from corefw.plugin_system.manager import PluginManager

__all__ = ["sections_in_time"]

_PLUGIN_S = 2.0
_TOTAL_S = 5.0
_LOOK_S = 0.05


def sections_in_time(
    plugins: PluginManager, plugin_s: float = _PLUGIN_S, total_s: float = _TOTAL_S
) -> tuple[dict[str, type[Any]], list[str]]:
    """Load the general plugins and ask for their sections.

    A plugin can't be stopped, but it can be left behind: a thread of its own, which doesn't keep the process from
    ending, waits for it. What holds the interpreter in native code can't be left behind.

    Args:
        plugin_s: how long one plugin may take.
        total_s: how long all may take.

    Returns:
        by plugin the type of its section, and the names of those that took too long or weren't reached in time.

    Raises:
        CorefwError: see ``PluginManager.load_general`` and ``declared_sections``.
    """
    late: list[str] = []
    end_s = time.monotonic() + total_s
    output = sys.stdout
    try:
        while True:
            attempt = _Attempt(plugins)
            attempt.start()
            hung = attempt.wait(plugin_s, end_s)
            if hung is None:
                return attempt.sections(), late
            late.append(hung.full_name)
            plugins.give_up(hung, f"it takes longer than {plugin_s:g} s")
            if time.monotonic() >= end_s:
                return {}, [*late, *_unreached(plugins)]
    finally:
        sys.stdout = output  # it is turned away from what is being loaded, and one that hangs still is


def _unreached(plugins: PluginManager) -> list[str]:
    general = (v.plugin for v in plugins.verdicts if v.allowed and v.plugin.group == "general_plugins")
    return [plugin.full_name for plugin in general if plugins.outcome(plugin) is None]


class _AbandonedError(BaseException):
    """Ends a thread that nobody waits for any more, before it touches another plugin."""


class _Attempt(threading.Thread):
    def __init__(self, plugins: PluginManager) -> None:
        super().__init__(name="plugins for a page of help", daemon=True)
        self._plugins = plugins
        self._current: tuple[FoundPlugin, float] | None = None
        self._abandoned = False
        self._sections: dict[str, type[Any]] = {}
        self._error: BaseException | None = None

    def run(self) -> None:
        self._plugins.watching = self._watching
        try:
            self._plugins.load_general("cli")
            self._sections = declared_sections(self._plugins)
        except _AbandonedError:
            pass
        except BaseException as error:  # raised where the result is asked for
            self._error = error

    def wait(self, plugin_s: float, end_s: float) -> FoundPlugin | None:
        """None when all is done, else the plugin that isn't waited for any longer."""
        while self.is_alive():
            self.join(_LOOK_S)
            now_s, current = time.monotonic(), self._current
            if current is not None and now_s >= min(end_s, current[1] + plugin_s):
                self._abandoned = True
                return current[0]
        return None

    def sections(self) -> dict[str, type[Any]]:
        if self._error is not None:
            raise self._error
        return self._sections

    @contextmanager
    def _watching(self, plugin: FoundPlugin) -> Iterator[None]:
        self._stop_if_abandoned()
        self._current = plugin, time.monotonic()
        yield
        self._current = None
        self._stop_if_abandoned()

    def _stop_if_abandoned(self) -> None:
        if self._abandoned:
            raise _AbandonedError
