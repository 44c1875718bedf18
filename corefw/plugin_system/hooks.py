"""Hooks that general plugins may implement, and the typed face over pluggy that calls them.

A hook is called at start, never in a step. A hook module marks its functions::

    from corefw.plugin_system.hooks import hookimpl

    @hookimpl
    def corefw_loaded(process: str) -> None: ...
"""

from __future__ import annotations

from types import FunctionType

import pluggy

from corefw.errors import PluginError
from corefw.plugin_system.groups import PREFIX
from corefw.plugin_system.names import suggestion

__all__ = ["HookSpecs", "Hooks", "hookimpl"]

_PROJECT = PREFIX.rstrip(".")
_HOOK_PREFIX = f"{_PROJECT}_"

hookspec = pluggy.HookspecMarker(_PROJECT)
hookimpl = pluggy.HookimplMarker(_PROJECT)


class HookSpecs:
    """The hooks there are."""

    @hookspec
    def corefw_loaded(self, process: str) -> None:
        """Called once in each process, after all general plugins were loaded in it (again for a further engine).

        Args:
            process: the process's role: ``front_end``, ``engine_core``, ``worker`` or ``cli``. An engine that runs
                inside the front end is one process and has the role of whoever loaded plugins first.
        """


HOOK_NAMES = tuple(name for name in vars(HookSpecs) if name.startswith(_HOOK_PREFIX))


class Hooks:
    """Registers hook modules and calls them, one plugin at a time, so that a failure has an owner."""

    def __init__(self) -> None:
        self._relay = pluggy.PluginManager(_PROJECT)
        self._relay.add_hookspecs(HookSpecs)

    def register(self, name: str, module: object) -> tuple[str, ...]:
        """Take a hook module; returns the names of its hooks.

        Raises:
            PluginError: a hook is misspelt, unmarked or takes unknown arguments, or there is none at all.
        """
        _refuse_unmarked(name, module)
        try:
            self._relay.register(module, name=name)
            self._relay.check_pending()
        except pluggy.PluginValidationError as error:
            self._forget(name)
            raise PluginError(f"{error}; the hooks are {', '.join(HOOK_NAMES)}") from error
        callers = self._relay.get_hookcallers(self._relay.get_plugin(name)) or []
        if not callers:
            self._forget(name)
            raise PluginError(f"{name} has no hooks; the hooks are {', '.join(HOOK_NAMES)}")
        return tuple(caller.name for caller in callers)

    def loaded(self, name: str, process: str) -> None:
        """Call ``corefw_loaded`` of one registered module, if it has that hook."""
        plugins = self._relay.get_plugins()
        others = [other for other in plugins if self._relay.get_name(other) != name]
        self._relay.subset_hook_caller("corefw_loaded", remove_plugins=others)(process=process)

    def _forget(self, name: str) -> None:
        if self._relay.has_plugin(name):
            self._relay.unregister(name=name)


def _refuse_unmarked(name: str, module: object) -> None:
    for attribute, value in vars(module).items() if hasattr(module, "__dict__") else ():
        if not isinstance(value, FunctionType) or not attribute.startswith(_HOOK_PREFIX):
            continue
        if attribute not in HOOK_NAMES:
            raise PluginError(f"{name} implements an unknown hook {attribute}; {suggestion(attribute, HOOK_NAMES)}")
        if not hasattr(value, f"{_PROJECT}_impl"):
            raise PluginError(f"{name}: {attribute} isn't marked with @hookimpl, so it would never be called")
