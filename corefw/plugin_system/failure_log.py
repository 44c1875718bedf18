"""What is logged of a plugin that is called again and again whatever it raises."""

from __future__ import annotations

import logging
from collections import Counter

from corefw.plugin_system.contributions import MAX_FAILURES

__all__ = ["FailureLog"]


class FailureLog:
    """Tells a method's first failures in a row, and no more of them until it works again.

    Args:
        what: whose methods, for people.
        log: where to tell.
    """

    def __init__(self, what: str, log: logging.Logger) -> None:
        self._what = what
        self._log = log
        self._failures: Counter[str] = Counter()

    def failed(self, method: str, error: BaseException) -> None:
        """Note that a method raised."""
        self._failures[method] += 1
        if self._failures[method] <= MAX_FAILURES:
            more = "; no more is told of it until it works" if self._failures[method] == MAX_FAILURES else ""
            self._log.error("%s failed in %s%s", self._what, method, more, exc_info=error)

    def worked(self, method: str) -> None:
        """Note that a method came back."""
        if self._failures:
            self._failures.pop(method, None)
