"""The engine as the front end sees it: requests in, one stream of outputs a request."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from corefw.engine.clients.base import read_until_death
from corefw.engine.event_subscription import EventSubscription
from corefw.engine.output_stream import OutputStream
from corefw.errors import EngineDeadError, EngineError, RequestError
from corefw.messages.control import UtilityCall
from corefw.messages.outputs import EngineCoreOutputs, ErrorKind, SchedulerStats, UtilityResult
from corefw.messages.plain import plain_problem
from corefw.observability.logging import get_logger

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.engine.clients.base import AsyncCoreClient
    from corefw.messages.request import EngineCoreRequest
    from corefw.plugin_system.manager import PluginManager

__all__ = ["AsyncEngine", "OutputStream"]

_log = get_logger(__name__)


class _CallRefusedError(EngineError):
    """The core answered a call with an error that is its caller's."""


class AsyncEngine:
    """Hands requests to a core and its outputs to their streams. Used by one event loop; made while it runs.

    Args:
        client: a connected core; the engine owns it from now on.
        grace_s: how long a core that is shut down gets to confirm aborts, and then to end by itself.

    Attributes:
        stats: what the core said last.
        death: why the engine is dead, None while it isn't. Every stream raises it, and so does every ``submit``.
    """

    def __init__(self, client: AsyncCoreClient, *, grace_s: float = 3.0) -> None:
        self._client = client
        self._grace_s = grace_s
        self._streams: dict[str, OutputStream] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_ids = itertools.count(1)
        self._subscriptions: list[EventSubscription] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._stopped: asyncio.Task[None] | None = None
        self.stats = SchedulerStats()
        self.death: EngineDeadError | None = None
        self._handler = asyncio.create_task(self._handle_outputs(), name="engine-outputs")

    @classmethod
    async def in_process(
        cls, config: EngineConfig, plugins: PluginManager, on_progress: Callable[[str], None] | None = None
    ) -> AsyncEngine:
        """An engine whose core runs on a thread of this process.

        Raises:
            ConfigError, PluginError, EngineStartError: the core can't start.
        """
        from corefw.engine.clients.in_process import ThreadClient  # a front end with a core process needs no core

        return cls(await ThreadClient.connect(config, plugins, on_progress))

    @property
    def config(self) -> EngineConfig:
        """What the core was built from."""
        return self._client.config

    @property
    def plan(self) -> RuntimePlan:
        """What the core decided at start."""
        return self._client.plan

    @property
    def alive(self) -> bool:
        """Whether the core exists and hasn't crashed."""
        return self.death is None and self._client.alive

    @property
    def trouble(self) -> str | None:
        """Why the core can't be relied on at the moment, though it isn't dead for good; None while it can."""
        return self._client.trouble

    @property
    def num_unfinished(self) -> int:
        """Requests whose end the core hasn't told yet, aborted ones included."""
        return len(self._streams)

    def submit(self, request: EngineCoreRequest) -> OutputStream:
        """Start a request.

        Raises:
            EngineDeadError: the engine is dead or shutting down.
            EngineError: the id is in use, or the request holds something that isn't plain data.
        """
        if self.death is not None:
            raise self.death
        if self._closing:
            raise EngineDeadError("the engine is shutting down")
        if request.request_id in self._streams:
            raise EngineError(f"request id {request.request_id[:80]!r} is in use")
        try:
            self._client.add_request(request)
        except (TypeError, ValueError, OverflowError) as error:
            raise EngineError(f"request {request.request_id[:80]!r} can't be sent: {error}") from error
        stream = OutputStream(request.request_id, self._abort)
        self._streams[request.request_id] = stream
        self._idle.clear()
        return stream

    async def call(self, method: str, *args: Any) -> Any:
        """Call the core by name with plain data.

        Raises:
            EngineError: the core refused the call, with its reason.
            EngineDeadError: the core is dead.
        """
        if self.death is not None:
            raise self.death
        call_id = next(self._call_ids)
        answer = self._calls[call_id] = asyncio.get_running_loop().create_future()
        try:
            self._client.call(UtilityCall(call_id=call_id, method=method, args=list(args)))
            return await answer
        finally:
            del self._calls[call_id]

    async def call_plugin(self, name: str, *args: Any, timeout_s: float = 30.0) -> Any:
        """Call a function that a plugin offers in the core or in its workers (``corefw_rpc_handlers``).

        Args:
            name: ``plugin.method``.
            args: plain data.
            timeout_s: how long to wait; the function itself isn't stopped.

        Returns:
            what it answered, plain data; where it lives in workers, a list of their answers by rank.

        Raises:
            RequestError: there is no such function, it failed, it took too long, or the arguments aren't plain data.
            EngineError: the core failed, or is dead.
        """
        if "." not in name:
            raise RequestError(f"{name[:80]!r} names no plugin's function; it takes plugin.method")
        if problem := plain_problem(args):
            raise RequestError(f"{name[:80]} can't be called so: the list of its arguments {problem}")
        try:
            return await asyncio.wait_for(self.call(name, *args), timeout_s)
        except TimeoutError:
            raise RequestError(f"{name[:80]} didn't answer within {timeout_s:g} s", status=504) from None
        except _CallRefusedError as error:
            raise RequestError(str(error)) from error

    def subscribe(self, *topics: str) -> EventSubscription:
        """Events that plugins in the core and in workers tell from now on.

        Args:
            topics: ``plugin.topic``, or ``plugin`` for all of a plugin's; none for all there are.

        Raises:
            EngineDeadError: the engine is dead.
        """
        if self.death is not None:
            raise self.death
        subscription = EventSubscription(topics, self._subscriptions.remove)
        self._subscriptions.append(subscription)
        return subscription

    async def shutdown(self, drain_s: float = 0.0) -> None:
        """Stop: no new requests, running ones get ``drain_s`` seconds, the rest is aborted; then the core ends.

        Nothing is left afterwards: no process, thread, socket or file. May be called again, also at the same time.
        """
        self._closing = True
        if self._stopped is None:
            self._stopped = asyncio.create_task(self._stop(drain_s), name="engine-stop")
        await asyncio.shield(self._stopped)

    async def _stop(self, drain_s: float) -> None:
        await self._until_idle(drain_s)
        for stream in tuple(self._streams.values()):
            stream.abort()
        await self._until_idle(self._grace_s)
        await self._client.stop(self._grace_s)
        self._handler.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._handler
        self._die(EngineDeadError("the engine was shut down"))

    async def _until_idle(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)

    async def _handle_outputs(self) -> None:
        """The output handler: one task an engine, until the core is gone."""
        self._die(await read_until_death(self._client, self._distribute))

    def _distribute(self, message: EngineCoreOutputs) -> None:
        if message.stats is not None:
            self.stats = message.stats
        if message.utility is not None:
            self._resolve(message.utility)
        if self._subscriptions:
            self._publish(message)
        for output in message.outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                continue
            stream.put(output)
            if output.finish_reason is not None:
                self._forget(output.request_id)

    def _resolve(self, result: UtilityResult) -> None:
        answer = self._calls.get(result.call_id)
        if answer is None or answer.done():  # its caller was cancelled
            return
        if result.error is None:
            answer.set_result(result.value)
        else:
            refused = result.error_kind is ErrorKind.REQUEST
            answer.set_exception(_CallRefusedError(result.error) if refused else EngineError(result.error))

    def _publish(self, message: EngineCoreOutputs) -> None:
        for subscription in self._subscriptions:
            subscription.num_dropped += message.num_dropped_events
            for event in message.events:
                subscription.put(event)

    def _forget(self, request_id: str) -> None:
        del self._streams[request_id]
        if not self._streams:
            self._idle.set()

    def _abort(self, request_id: str) -> None:
        # The stream stays until the core has told the end: its id isn't free before.
        if self.death is None:
            self._client.abort([request_id])

    def _die(self, death: EngineDeadError) -> None:
        if self.death is not None:
            return
        self.death = death
        if not self._closing:
            _log.error("%s", death)
        for stream in self._streams.values():
            stream.fail(death)
        self._streams.clear()
        for subscription in self._subscriptions:
            subscription.fail(death)
        self._idle.set()
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(death)
        self.stats = SchedulerStats()
