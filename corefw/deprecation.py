"""Public names that go away: one table, the face that keeps them working, the warning that says who uses them.

A name stays for two minor releases after the one that deprecated it. Its module takes part with::

    __getattr__ = deprecated_names(__name__)
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

__all__ = ["DEPRECATED", "Deprecated", "blamed_on", "deprecated_names", "warn_of_overridden"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Deprecated:
    """A public name that goes away.

    Attributes:
        name: ``module:name``, or ``module:Class.method`` for what plugins override.
        since: the first release that warns, as ``major.minor``.
        removed_in: the release that no longer has it.
        replacement: ``module:name`` of what takes its place and is returned for it meanwhile; for a method, what to
            write instead.
    """

    name: str
    since: str
    removed_in: str
    replacement: str

    def message(self, user: str) -> str:
        """What its user reads."""
        return (
            f"{user} uses {self.name}, which is deprecated since corefw {self.since} and gone in {self.removed_in}; "
            f"use {self.replacement}"
        )


DEPRECATED: tuple[Deprecated, ...] = ()

_OWNER: ContextVar[str | None] = ContextVar("plugin_being_loaded", default=None)
_TOLD: set[tuple[str, str]] = set()


@contextmanager
def blamed_on(owner: str) -> Iterator[None]:
    """While this plugin is loaded, what it uses of the table is logged under its name."""
    token = _OWNER.set(owner)
    try:
        yield
    finally:
        _OWNER.reset(token)


def deprecated_names(module: str, table: Sequence[Deprecated] = DEPRECATED) -> Callable[[str], Any]:
    """A module's ``__getattr__``: a deprecated name gives its replacement, with a warning."""
    entries = {entry.name: entry for entry in table}

    def find(name: str) -> Any:
        entry = entries.get(f"{module}:{name}")
        if entry is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        _tell(entry)
        home, _, attribute = entry.replacement.partition(":")
        return getattr(importlib.import_module(home), attribute)

    return find


def warn_of_overridden(cls: type, table: Sequence[Deprecated] = DEPRECATED) -> None:
    """Tell of each deprecated method of an interface that the class defines anew."""
    bases = {f"{base.__module__}:{base.__qualname__}": base for base in cls.__mro__}
    for entry in table:
        owner, _, attribute = entry.name.rpartition(".")
        base = bases.get(owner)
        if base is not None and getattr(cls, attribute, None) is not getattr(base, attribute, None):
            _tell(entry)


def _tell(entry: Deprecated) -> None:
    owner = _OWNER.get()
    if owner is None:
        warnings.warn(entry.message("this code"), DeprecationWarning, stacklevel=3)
    elif (owner, entry.name) not in _TOLD:
        _TOLD.add((owner, entry.name))
        logger.warning("%s", entry.message(f"plugin {owner}"))
