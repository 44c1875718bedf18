"""What an operator set in the core while it ran, so that a new core can be told again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

__all__ = ["Journal"]

# Calls that set something in the core: by name, what of their arguments says *which* thing; the last call about each
# thing is what counts. Every call that changes the core for good belongs here.
_SETTERS: dict[str, Callable[[Sequence[Any]], Hashable]] = {
    "set_log_level": lambda _: None,
}


class Journal:
    """Successful calls that set something, in the order in which they were made."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, Hashable], tuple[str, list[Any]]] = {}

    def record(self, method: str, args: Sequence[Any]) -> None:
        """A call has succeeded. One that sets nothing isn't kept; one about the same thing replaces the older one."""
        which = _SETTERS.get(method)
        if which is None:
            return
        key = (method, which(args))
        self._calls.pop(key, None)
        self._calls[key] = (method, list(args))

    def __iter__(self) -> Iterator[tuple[str, list[Any]]]:
        """Methods and arguments, to be called again in this order."""
        return iter(tuple(self._calls.values()))
