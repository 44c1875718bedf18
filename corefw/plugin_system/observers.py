"""Calling an observer of a plugin: only what it overrides, and not any more once one of its methods keeps failing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from corefw.plugin_system.contributions import Contribution, Guarded

__all__ = ["ObserverCalls"]

T = TypeVar("T")
R = TypeVar("R")


class ObserverCalls(Generic[T]):
    """An observer with a guard for each of its methods: one that works doesn't make up for one that keeps failing.

    Args:
        contribution: the observer.
        base: the class whose methods do nothing; those that the observer leaves as they are aren't called.
        guard: ``PluginManager.guard``.

    Attributes:
        value: the observer itself.
        plugin: name of its plugin.
        owner: ``distribution/name`` of its plugin.
    """

    def __init__(
        self, contribution: Contribution[T], base: type, guard: Callable[[Contribution[T]], Guarded[T]] = Guarded
    ) -> None:
        self.value = contribution.value
        self.plugin = contribution.plugin
        self.owner = contribution.owner
        kind = type(contribution.value)
        methods = [name for name in dir(base) if not name.startswith("_") and callable(getattr(base, name))]
        self._guards = {name: guard(contribution) for name in methods if getattr(kind, name) is not getattr(base, name)}

    def run(self, method: str, *args: object) -> Any:
        """Call a method; None where the observer doesn't have it, it raised, or the observer is quarantined."""
        guarded = self._guard(method)
        return None if guarded is None else guarded.run(getattr(self.value, method), *args)

    def run_as(self, method: str, call: Callable[[], R]) -> R | None:
        """The same for a call that does something more than the method itself."""
        guarded = self._guard(method)
        return None if guarded is None else guarded.run(call)

    def has(self, method: str) -> bool:
        """Whether the observer has a method of its own."""
        return method in self._guards

    def _guard(self, method: str) -> Guarded[T] | None:
        guarded = self._guards.get(method)
        if guarded is None or any(each.quarantined is not None for each in self._guards.values()):
            return None
        return guarded
