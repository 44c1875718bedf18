"""What plugins contributed through hooks, and the guard behind which the engine calls it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, ParamSpec, TypeVar

from corefw.plugin_system.blame import told

__all__ = ["MAX_FAILURES", "Contribution", "Guarded"]

MAX_FAILURES = 3
"""Failing calls in a row after which a contribution isn't called any more."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Contribution(Generic[T]):
    """What one hook of one plugin returned.

    Attributes:
        plugin: the plugin's name.
        distribution: whose it is.
        hook: name of the hook.
        value: never None.
    """

    plugin: str
    distribution: str
    hook: str
    value: T

    @property
    def owner(self) -> str:
        """``distribution/name``."""
        return f"{self.distribution}/{self.plugin}"


class Guarded(Generic[T]):
    """A contribution that is called while the engine works: what it raises never reaches the engine.

    A failing call is logged with the plugin's name and gives None. After ``MAX_FAILURES`` of one method in a row the
    contribution is quarantined: it isn't called any more, which is logged once and told to ``PluginManager.report``. A
    method that works doesn't make up for one that keeps failing.

    Attributes:
        value: the contribution itself. Calls go through ``run``: ``guarded.run(guarded.value.added, request)``.
        quarantined: why it isn't called any more, None while it is.
    """

    __slots__ = ("_contribution", "_failures", "quarantined", "value")

    def __init__(self, contribution: Contribution[T]) -> None:
        self.value = contribution.value
        self.quarantined: str | None = None
        self._contribution = contribution
        self._failures: dict[str, int] = {}  # in a row, by the name of what was called

    @property
    def owner(self) -> str:
        """``distribution/name`` of the plugin."""
        return self._contribution.owner

    @property
    def hook(self) -> str:
        """Name of the hook that gave the contribution."""
        return self._contribution.hook

    def run(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Call something of the contribution; None when it raised, or is quarantined."""
        if self.quarantined is not None:
            return None
        try:
            result = call(*args, **kwargs)
        except (Exception, SystemExit) as error:
            self._count(_name_of(call), error)
            return None
        if self._failures:
            self._failures.pop(_name_of(call), None)
        return result

    def _count(self, name: str, error: BaseException) -> None:
        failures = self._failures[name] = self._failures.get(name, 0) + 1
        what = f"plugin {self.owner} ({self._contribution.hook})"
        if failures < MAX_FAILURES:
            logger.warning("%s raised; it goes on without", what, exc_info=error)
            return
        self.quarantined = f"quarantined after {failures} failures in a row: {told(error)}"
        logger.error("%s isn't called any more: %s", what, self.quarantined, exc_info=error)


def _name_of(call: object) -> str:
    return getattr(call, "__name__", type(call).__name__)
