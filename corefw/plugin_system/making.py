"""Asking a plugin at start for something that the engine can't do without."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from corefw.errors import CorefwError, PluginError
from corefw.plugin_system.blame import told
from corefw.plugin_system.groups import group_named

if TYPE_CHECKING:
    from corefw.plugin_system.manager import PluginManager

__all__ = ["made_by_plugin", "whose"]

P = ParamSpec("P")
R = TypeVar("R")


def whose(plugins: PluginManager, group: str, name: str) -> str:
    """What messages call a plugin: ``KV connector 'file'``; of one that isn't built in with group and distribution."""
    what = f"{group_named(group).what} {name!r}"
    plugin = plugins.found(group, name)
    if plugin is None or plugin.builtin:
        return what
    return f"{what} ({group}) of {plugin.distribution} {plugin.version}"


def made_by_plugin(
    what: str, kind: type | tuple[type, ...], call: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """What a plugin makes.

    Args:
        what: whose, for people: ``KV connector 'file'``. See ``whose``.
        kind: of which it has to be an instance.
        call: makes it.

    Raises:
        PluginError: the plugin raised, or made something else. Errors of ``corefw.errors`` pass as they are.
    """
    method = getattr(call, "__name__", "a call")
    try:
        result = call(*args, **kwargs)
    except CorefwError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"{what} failed in {method}: {told(error)}") from error
    if not isinstance(result, kind):
        raise PluginError(f"{what} failed in {method}: it returned {type(result).__name__}")
    return result
