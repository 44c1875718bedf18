"""Processes that render the same templates, so that one slow rendering doesn't hold up the others."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Mapping
from typing import Any

from corefw.errors import EngineError
from corefw.frontend.template_process import TemplateAnswer, TemplateProcess

__all__ = ["TemplatePool"]

# Two: what templates may compute at once is taken from the model where that runs on the same processor.
_MAX_PROCESSES = 2
# A rendering takes a millisecond; whoever waits this long is behind one that doesn't end.
_PATIENCE_S = 0.2


class TemplatePool:
    """One process from the start, and a second one from when somebody had to wait for the first.

    Any thread may ask; whoever finds both busy waits. The processes end with this object.

    Args:
        sources: template text by name.

    Raises:
        EngineError: the first process can't be started.
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = dict(sources)
        self._first = TemplateProcess(self._sources)
        self._free: queue.LifoQueue[TemplateProcess] = queue.LifoQueue()
        self._free.put(self._first)
        self._may_start = threading.Semaphore(_MAX_PROCESSES - 1)

    def problem(self) -> str | None:
        """See ``TemplateProcess.problem``."""
        return self._first.problem()

    def render(self, name: str, variables: Mapping[str, Any]) -> TemplateAnswer:
        """See ``TemplateProcess.render``."""
        process = self._acquire()
        try:
            return process.render(name, variables)
        finally:
            self._free.put(process)

    def _acquire(self) -> TemplateProcess:
        with contextlib.suppress(queue.Empty):
            return self._free.get(timeout=_PATIENCE_S)
        if self._may_start.acquire(blocking=False):
            try:
                return TemplateProcess(self._sources)
            except EngineError:  # the first one still works
                self._may_start.release()
        return self._free.get()
