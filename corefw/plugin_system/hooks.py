"""Registers hook modules and calls their hooks: pluggy behind a typed face, one plugin at a time, so that a failure
has an owner. Called when a process starts, never in a step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import pluggy

from corefw.errors import PluginError
from corefw.interfaces.hooks import FAMILIES
from corefw.interfaces.hooks.marker import HOOK_PREFIX, PROJECT
from corefw.plugin_system.names import suggestion

__all__ = ["HOOKS", "Hooks"]


def _specs(family: ModuleType) -> dict[str, Callable[..., Any]]:
    return {name: value for name, value in vars(family).items() if hasattr(value, f"{PROJECT}_spec")}


HOOKS: dict[str, Callable[..., Any]] = {name: spec for family in FAMILIES for name, spec in _specs(family).items()}


class Hooks:
    """The hook modules of one plugin manager."""

    def __init__(self) -> None:
        self._relay = pluggy.PluginManager(PROJECT)
        for family in FAMILIES:
            self._relay.add_hookspecs(family)

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
            raise PluginError(f"{error}; the hooks are {', '.join(HOOKS)}") from error
        callers = self._relay.get_hookcallers(self._relay.get_plugin(name)) or []
        if not callers:
            self._forget(name)
            raise PluginError(f"{name} has no hooks; the hooks are {', '.join(HOOKS)}")
        return tuple(caller.name for caller in callers)

    def call(self, name: str, hook: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call one hook of one registered module; None where it doesn't have that hook.

        Args:
            name: the module's, as registered.
            hook: the specification, of ``corefw.interfaces.hooks``; the others are its arguments.
        """
        arguments = dict(inspect.signature(hook).bind(*args, **keywords).arguments)
        plugins = self._relay.get_plugins()
        others = [other for other in plugins if self._relay.get_name(other) != name]
        answers = self._relay.subset_hook_caller(hook.__name__, remove_plugins=others)(**arguments)
        return answers[0] if answers else None

    def _forget(self, name: str) -> None:
        if self._relay.has_plugin(name):
            self._relay.unregister(name=name)


def _refuse_unmarked(name: str, module: object) -> None:
    for attribute, value in vars(module).items() if hasattr(module, "__dict__") else ():
        if not isinstance(value, FunctionType) or not attribute.startswith(HOOK_PREFIX):
            continue
        if attribute not in HOOKS:
            raise PluginError(f"{name} implements an unknown hook {attribute}; {suggestion(attribute, HOOKS)}")
        if value is HOOKS[attribute]:  # the specification, imported
            continue
        if not hasattr(value, f"{PROJECT}_impl"):
            raise PluginError(f"{name}: {attribute} isn't marked with @hookimpl, so it would never be called")
