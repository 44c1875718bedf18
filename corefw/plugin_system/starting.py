"""The border around what plugins do while an engine starts: what one raises there is told by its name."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from corefw.errors import CorefwError, PluginError, PluginUnavailable
from corefw.plugin_system.blame import one_line, place_of, told

if TYPE_CHECKING:
    from corefw.plugin_system.discovery import FoundPlugin
    from corefw.plugin_system.manager import PluginManager

__all__ = ["created", "plugin_of_class", "starting"]

_OWN_PACKAGE = "corefw"


@contextlib.contextmanager
def starting(plugins: PluginManager, group: str = "", name: str = "") -> Iterator[None]:
    """Turn what a plugin raises within into one error that names group, plugin, distribution and cause.

    Whose code raised is told from the traceback, innermost first, so that these may be nested and a plugin that calls
    the core, which calls another plugin, isn't blamed for it. What no plugin's code raised is put down to the one that
    is named, unless it is built in: its constructor may not even have begun. All else passes as it is.

    Args:
        plugins: which are loaded here.
        group: of the one that is called.
        name: its name, or ``module:Class`` where the operator may give that in place of a name.

    Raises:
        PluginError: a plugin that isn't built in raised. Errors of ``corefw.errors`` pass as they are, but for a
            ``PluginUnavailable`` straight from a plugin's code, which gets its name.
    """
    try:
        yield
    except PluginUnavailable as error:
        plugin = _owner(plugins, error, last_only=True)
        if plugin is None:
            raise
        raise PluginUnavailable(f"{_described(plugin)} is unavailable: {one_line(str(error))}") from error
    except CorefwError:
        raise
    except (Exception, SystemExit) as error:
        plugin = _owner(plugins, error) or plugins.found(group, name)
        if plugin is not None and not plugin.builtin:
            cause = f"{told(error)}{place_of(error, plugin)}"
            raise PluginError(f"{_described(plugin)} failed at its start: {cause}") from error
        if plugin is None and name and not name.startswith(f"{_OWN_PACKAGE}."):
            raise PluginError(f"{name[:200]!r} ({group}) failed at its start: {told(error)}") from error
        raise


def created(plugins: PluginManager, group: str, name: str) -> Any:
    """An instance of a plugin's class, made without arguments.

    Raises:
        PluginError: it isn't there, can't be loaded, or raised: see ``starting``.
    """
    cls = plugins.get(group, name)
    with starting(plugins, group, name):
        return cls()


def plugin_of_class(plugins: PluginManager, cls: type) -> str | None:
    """What messages call the loaded plugin that brought a class; None where none did."""
    for verdict in plugins.verdicts:
        outcome = plugins.outcome(verdict.plugin)
        if outcome is not None and outcome.value is cls:
            return _described(verdict.plugin)
    return None


def _described(plugin: FoundPlugin) -> str:
    return f"plugin {plugin.name!r} ({plugin.group}) of {plugin.distribution} {plugin.version}"


def _owner(plugins: PluginManager, error: BaseException, *, last_only: bool = False) -> FoundPlugin | None:
    """The loaded plugin whose code is nearest to where the error was raised."""
    outcomes = [(v.plugin, plugins.outcome(v.plugin)) for v in plugins.verdicts if not v.plugin.builtin]
    loaded = [(plugin, outcome.value) for plugin, outcome in outcomes if outcome and outcome.value is not None]
    if not loaded:
        return None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in frames[-1:] if last_only else reversed(frames):
        closeness, plugin = max(((_closeness(frame, *each), each[0]) for each in loaded), key=lambda pair: pair[0])
        if closeness:
            return plugin
    return None


def _closeness(frame: FrameType, plugin: FoundPlugin, value: Any) -> int:
    """0 where the code isn't of the plugin's package; most where it is of its class."""
    module = str(frame.f_globals.get("__name__", ""))
    entry = plugin.value.partition(":")[0].strip()
    if module in (entry, getattr(value, "__module__", entry)):
        cls = getattr(value, "__qualname__", "")
        return 3 if cls and f"{frame.f_code.co_qualname}.".startswith(f"{cls}.") else 2
    package = entry.partition(".")[0]
    return int(package != _OWN_PACKAGE and module.partition(".")[0] == package)
