"""Processes that render the same templates, so that slow renderings don't hold up the others."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Literal

from corefw.frontend.template_process import TemplateAnswer, TemplateProcess

__all__ = ["Lane", "TemplatePool"]

# quick: computes for a moment only; slow: as long as the limit lets it; any: first quick and then, if need be, slow.
Lane = Literal["any", "quick", "slow"]


class TemplatePool:
    """A quick process from the start, and a slow one from when somebody first needs it.

    A rendering takes a millisecond. One that takes longer is given up by the quick process, which is thus free again
    for the others, and begins anew in the slow one. There is one of each: what templates may compute at once is taken
    from the model where that runs on the same processor. Any thread may ask; whoever finds a process busy waits. The
    processes end with this object.

    Args:
        sources: template text by name.

    Raises:
        EngineError: the quick process can't be started.
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = dict(sources)
        self._first = TemplateProcess(self._sources)
        self._second: TemplateProcess | None = None
        self._starting = threading.Lock()

    def problem(self) -> str | None:
        """See ``TemplateProcess.problem``."""
        return self._first.problem()

    def render(self, name: str, variables: Mapping[str, Any], *, lane: Lane = "any") -> TemplateAnswer:
        """See ``TemplateProcess.render``; the answer ``is_slow`` in the quick lane alone.

        Raises:
            EngineError: a process can't be started, or doesn't answer.
        """
        if lane != "slow":
            answer = self._first.render(name, variables, briefly=True)
            if lane == "quick" or not answer.is_slow:
                return answer
        return self._slow_process().render(name, variables)

    def _slow_process(self) -> TemplateProcess:
        with self._starting:
            if self._second is None:
                self._second = TemplateProcess(self._sources)
            return self._second
