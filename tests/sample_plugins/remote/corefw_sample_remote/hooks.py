"""Functions in the core and in workers that the front end calls, and an event for every request that ends."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from corefw.interfaces.hooks.lifecycle import CoreObserver
from corefw.interfaces.hooks.rpc import EventSource
from corefw.sdk.plugins import hookimpl

if TYPE_CHECKING:
    from corefw.interfaces.hooks.lifecycle import CoreRequest
    from corefw.interfaces.hooks.rpc import EventSink, RpcHandlers
    from corefw.messages.outputs import FinishReason
    from corefw.sdk.config import EngineConfig


class Teller(EventSource):
    """Keeps a sink."""

    def attach(self, sink: EventSink) -> None:
        """Events go there from now on."""
        self.sink = sink

    def tell(self, num_events: int) -> int:
        """Tell so many events at once; how many found room."""
        return sum(self.sink.emit("told", index) for index in range(num_events))


class Ends(CoreObserver[None]):
    """Counts ends and tells them."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def finished(self, request: CoreRequest, context: None, reason: FinishReason, error: str | None) -> None:
        """Count, and tell."""
        self.counts[reason.value] = self.counts.get(reason.value, 0) + 1
        TELLERS["engine_core"].sink.emit("ended", {"reason": reason.value, "tokens": list(request.output_ids)})


ENDS = Ends()
TELLERS = {"engine_core": Teller(), "worker": Teller()}


def _fail(reason: str) -> None:
    raise ValueError(reason)


def _sleep(duration_s: float) -> None:
    time.sleep(duration_s)


@hookimpl
def corefw_core_observer(config: EngineConfig) -> CoreObserver[None]:
    """Observe ends."""
    return ENDS


@hookimpl
def corefw_event_source(config: EngineConfig, process: str) -> EventSource:
    """Tell from here."""
    return TELLERS[process]


@hookimpl
def corefw_rpc_handlers(config: EngineConfig, process: str) -> RpcHandlers:
    """What may be called where."""
    core: Mapping[str, Any] = {
        "counts": lambda: ENDS.counts,
        "echo": lambda *values: list(values),
        "fail": _fail,
        "sleep": _sleep,
        "bad": object,
        "garble": lambda: _fail("\udcff"),
        "leave": sys.exit,
    }
    workers: Mapping[str, Any] = {"pid": os.getpid, "tell": TELLERS["worker"].tell}
    return core if process == "engine_core" else workers
