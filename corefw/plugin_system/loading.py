"""Turns an entry point into what its group asks for. The plugin border: whatever a plugin raises is recorded."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from corefw.deprecation import warn_of_overridden
from corefw.errors import PluginError, PluginUnavailable
from corefw.plugin_system.blame import one_line, place_of, told
from corefw.plugin_system.discovery import FoundPlugin
from corefw.plugin_system.groups import group_named
from corefw.plugin_system.isolation import contained
from corefw.plugin_system.verdicts import State
from corefw.plugin_system.versions import class_version_reason

__all__ = ["Outcome", "attribute_of", "load_plugin", "resolve_class"]

_REFERENCE = re.compile(r"([\w.]+)\s*(?::\s*([\w.]+)\s*)?(?:\[.*\]\s*)?")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of loading.

    Attributes:
        state: ``loaded``, ``unavailable`` or ``failed``.
        reason: in words.
        value: the class (or hook module) when loaded.
        error: what the plugin raised when it failed.
    """

    state: State
    reason: str
    value: Any = None
    error: BaseException | None = None


def load_plugin(plugin: FoundPlugin, finish: Callable[[FoundPlugin, object], object]) -> Outcome:
    """Import the entry point and hand what it is to ``finish``, which returns the value to keep.

    Raises nothing of the plugin's: also not what isn't an ``Exception``, such as SystemExit.
    """
    try:
        with contained(plugin.full_name):
            value = finish(plugin, _target(plugin.value))
    except PluginUnavailable as unavailable:
        return Outcome(State.UNAVAILABLE, one_line(str(unavailable)) or "it gave no reason")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Outcome(State.FAILED, told(error) + place_of(error, plugin), error=error)
    return Outcome(State.LOADED, f"from {plugin.value}", value)


def _target(value: str) -> object:
    """What an entry point refers to: a module, or something in it. Extras after it are for installers."""
    reference = _REFERENCE.fullmatch(value)
    if reference is None:
        raise PluginError(f"{value[:80]!r} is no entry point; write module:Class")
    module, attribute = reference.groups()
    return attribute_of(f"{module}:{attribute}") if attribute else import_module(module)


def resolve_class(plugin: FoundPlugin, target: object) -> type:
    """The class behind an entry point: itself, what a zero-argument function returns, or ``"module:Class"``.

    Raises:
        PluginUnavailable: the plugin said that it can't run here (also by None).
        PluginError: it is no class, not of the group's interface, or of a version that isn't accepted.
    """
    if callable(target) and not isinstance(target, type):
        target = target()
    if target is None:
        raise PluginUnavailable("it says that it can't run here, without a reason (None)")
    if isinstance(target, str):
        target = attribute_of(target)
    if not isinstance(target, type):
        raise PluginError(f"{plugin.value} gives {type(target).__name__}, not a class")
    _check_interface(plugin, target)
    return target


def attribute_of(path: str) -> object:
    """What ``module:attribute`` names.

    Raises:
        PluginError: the text isn't of that form, or the module has no such attribute.
    """
    module, colon, attribute = path.partition(":")
    if not (colon and module and attribute):
        raise PluginError(f"{path[:80]!r} isn't of the form module:Class")
    found: object = import_module(module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise PluginError(f"module {module} has no {attribute!r}")
        found = getattr(found, part)
    return found


def _check_interface(plugin: FoundPlugin, cls: type) -> None:
    group = group_named(plugin.group)
    if group.interface is None:
        return
    interface = attribute_of(group.interface)
    if not isinstance(interface, type) or not issubclass(cls, interface):
        raise PluginError(f"{cls.__module__}:{cls.__qualname__} doesn't derive from {group.interface}")
    # What the metadata says was judged before loading, and a range there says more than one number here.
    if plugin.api_version is None and (reason := class_version_reason(group, getattr(cls, "api_version", 1))):
        raise PluginError(reason)
    warn_of_overridden(cls)
