"""What the engines need from a core, wherever it runs."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from corefw.errors import EngineDeadError, EngineError
from corefw.observability.logging import get_logger

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.messages.control import UtilityCall, WaveOrder
    from corefw.messages.events import PluginEvent
    from corefw.messages.outputs import EngineCoreOutputs
    from corefw.messages.request import EngineCoreRequest

__all__ = ["AsyncCoreClient", "Mailbox", "SyncCoreClient", "post", "read_until_death"]

T = TypeVar("T")

_log = get_logger(__name__)


class SyncCoreClient(ABC):
    """A core that its caller drives, step by step. Each call may raise EngineDeadError: the core has gone.

    Attributes:
        config: what the core was built from.
        plan: what it decided at start.
    """

    config: EngineConfig
    plan: RuntimePlan

    @abstractmethod
    def add_request(self, request: EngineCoreRequest) -> None:
        """Hand a request over; a wrong one comes back as its terminal output."""

    @abstractmethod
    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests; unknown ids are ignored."""

    @abstractmethod
    def step(self) -> EngineCoreOutputs:
        """News since the last call, possibly none; runs a step if there is work."""

    @abstractmethod
    def has_work(self) -> bool:
        """Whether ``step`` can bring anything."""

    @abstractmethod
    def call(self, method: str, args: Sequence[Any] = ()) -> Any:
        """Call the core by name; arguments and result are plain data.

        Raises:
            RequestError: there is no such call, or it doesn't take these arguments.
        """

    @abstractmethod
    def take_events(self) -> list[PluginEvent]:
        """What plugins have told that no ``step`` brought."""

    @abstractmethod
    def shutdown(self) -> None:
        """Stop the core. May be called twice."""


class AsyncCoreClient(ABC):
    """A core that runs by itself. Used by one event loop; the calls that aren't coroutines never block.

    Attributes:
        config: what the core was built from.
        plan: what it decided at start.
    """

    config: EngineConfig
    plan: RuntimePlan

    @abstractmethod
    def add_request(self, request: EngineCoreRequest) -> None:
        """Hand a request over; a wrong one comes back as its terminal output.

        Raises:
            TypeError, OverflowError: the request holds something that isn't plain data.
        """

    @abstractmethod
    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests, also ones of the step that is running; unknown ids are ignored."""

    @abstractmethod
    def call(self, call: UtilityCall) -> None:
        """Call the core by name; the answer comes as the ``utility`` of some outputs."""

    def start_wave(self, order: WaveOrder) -> None:
        """Tell an engine that computes together with others what the coordinator says."""
        raise NotImplementedError(f"{type(self).__name__} isn't one of several engines that compute together")

    @abstractmethod
    async def next_outputs(self) -> EngineCoreOutputs:
        """The next message of the core, in order.

        Raises:
            EngineError: the core has gone; every later call raises it too.
        """

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether the core's process or thread exists."""

    @property
    def trouble(self) -> str | None:
        """Why it can't be relied on at the moment, though it isn't dead for good; None while it can."""
        return None

    @abstractmethod
    async def stop(self, timeout_s: float) -> None:
        """End the core and everything around it; one that hasn't ended after that time is killed where possible."""


class Mailbox:
    """Takes outputs from another thread to the event loop that made it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[EngineCoreOutputs] = deque()
        self._error: EngineError | None = None
        self._filled = asyncio.Event()

    def put(self, outputs: EngineCoreOutputs) -> None:
        """From any thread: deliver outputs."""
        self._items.append(outputs)
        self._wake()

    def fail(self, error: EngineError) -> None:
        """From any thread: nothing will come any more. The outputs delivered before still do."""
        self._error = error
        self._wake()

    async def get(self) -> EngineCoreOutputs:
        """The next outputs, or the error."""
        while not self._items:
            if self._error is not None:
                raise self._error
            self._filled.clear()
            if not self._items and self._error is None:
                await self._filled.wait()
        return self._items.popleft()

    def _wake(self) -> None:
        post(self._loop, lambda _: self._filled.set(), None)


def post(loop: asyncio.AbstractEventLoop, callback: Callable[[T], object], value: T) -> None:
    """From any thread: call back on the event loop; nothing happens when that has been closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, value)


async def read_until_death(client: AsyncCoreClient, take: Callable[[EngineCoreOutputs], object]) -> EngineDeadError:
    """Hand each message of a core to ``take``, until none will come any more; returns why."""
    try:
        while True:
            take(await client.next_outputs())
    except EngineDeadError as error:
        return error
    except EngineError as error:
        return EngineDeadError(str(error))
    except Exception as error:  # whatever it is, nobody must wait for outputs any longer
        _log.exception("handling the core's outputs failed")
        return EngineDeadError(f"handling the core's outputs failed: {error}")
