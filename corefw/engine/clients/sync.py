"""Any core that runs by itself, for a caller without an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from corefw.engine.clients.base import AsyncCoreClient, SyncCoreClient, post, read_until_death
from corefw.errors import EngineDeadError, EngineError, RequestError
from corefw.messages.control import UtilityCall
from corefw.messages.outputs import EngineCoreOutput, EngineCoreOutputs, ErrorKind, FinishReason, UtilityResult
from corefw.messages.plain import plain_problem

if TYPE_CHECKING:
    from corefw.messages.events import PluginEvent
    from corefw.messages.outputs import SchedulerStats
    from corefw.messages.request import EngineCoreRequest

__all__ = ["SyncClient"]

Connect = Callable[[], Awaitable[AsyncCoreClient]]

# A step without news returns after so long, so that its caller can look after Ctrl-C.
_WAIT_S = 0.1
# How long the core may take to end by itself.
_GRACE_S = 3.0
_MAX_UNREAD_EVENTS = 1024


class SyncClient(SyncCoreClient):
    """Waits for what the core does by itself. The core's client lives on an event loop, on a thread of its own.

    When this object is forgotten, or the program ends, the core is stopped.

    Args:
        connect: makes the core's client; is called on the event loop.
        grace_s: how long the core may take to end by itself.
        release: called when the core has ended, on another thread.

    Raises:
        EngineStartError: the core can't start.
    """

    def __init__(
        self, connect: Connect, *, grace_s: float = _GRACE_S, release: Callable[[], object] = lambda: None
    ) -> None:
        core = self._core = _CoreThread(connect, grace_s, release)
        # What ends the core mustn't know this object: it would keep it alive.
        self._end = weakref.finalize(self, core.close)
        try:
            self._client = core.client()
        except BaseException:  # Ctrl-C, too, leaves nothing
            self._end()
            raise
        self.config, self.plan = self._client.config, self._client.plan
        self._unfinished: set[str] = set()

    def add_request(self, request: EngineCoreRequest) -> None:
        self._check_alive()
        self._unfinished.add(request.request_id)
        self._core.post(self._core.add_request, request)

    def abort(self, request_ids: Sequence[str]) -> None:
        self._core.post(self._core.abort, tuple(request_ids))

    def step(self) -> EngineCoreOutputs:
        """News since the last call; waits a moment for them while there is work."""
        try:
            news = self._core.news.get(timeout=_WAIT_S) if self._unfinished else self._core.news.get_nowait()
        except queue.Empty:
            self._check_alive()
            return EngineCoreOutputs(stats=self._core.stats)
        if isinstance(news, EngineDeadError):
            self._unfinished.clear()
            raise news
        self._unfinished -= {output.request_id for output in news if output.finish_reason is not None}
        self.plan = self._client.plan  # another one after a restart
        return EngineCoreOutputs(outputs=news, stats=self._core.stats)

    def has_work(self) -> bool:
        return bool(self._unfinished) or not self._core.news.empty()

    def call(self, method: str, args: Sequence[Any] = ()) -> Any:
        self._check_alive()
        if problem := plain_problem(list(args)):
            raise RequestError(f"{method[:80]} can't be called so: the list of its arguments {problem}")
        answer: Future[UtilityResult] = Future()
        self._core.post(partial(self._core.call, method, list(args)), answer)
        result = answer.result()
        if result.error is None:
            return result.value
        raise (RequestError if result.error_kind is ErrorKind.REQUEST else EngineError)(result.error)

    def take_events(self) -> list[PluginEvent]:
        self.call("stats")  # what was told before has arrived when this is answered
        return [self._core.events.popleft() for _ in range(len(self._core.events))]

    def shutdown(self) -> None:
        self._end()

    def _check_alive(self) -> None:
        if self._core.death is not None:
            raise self._core.death


class _CoreThread:
    """The thread with the event loop, and what comes from there.

    Attributes:
        news: outputs as they come; the last is the core's death.
        events: of plugins; of many unread ones the newest.
        stats: what the core said last.
        death: why there will be no more news; None as long as there may be.
    """

    def __init__(self, connect: Connect, grace_s: float, release: Callable[[], object]) -> None:
        self.news: queue.SimpleQueue[list[EngineCoreOutput] | EngineDeadError] = queue.SimpleQueue()
        self.events: deque[PluginEvent] = deque(maxlen=_MAX_UNREAD_EVENTS)
        self.stats: SchedulerStats | None = None
        self.death: EngineDeadError | None = None
        self._grace_s = grace_s
        self._release = release
        self._calls: dict[int, Future[UtilityResult]] = {}
        self._call_ids = itertools.count(1)
        self._connected: Future[AsyncCoreClient] = Future()
        self._stopping = asyncio.Event()
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        # A daemon: else the interpreter's end would wait for it before it lets anybody stop it.
        self._thread = threading.Thread(target=self._run, args=(connect,), name="core-client", daemon=True)
        self._thread.start()

    def client(self) -> AsyncCoreClient:
        """Wait for the core's client, which belongs to this thread's loop; raises what ``connect`` raised."""
        return self._connected.result()

    def post(self, method: Callable[[Any], object], value: object) -> None:
        """From any thread: run one of the methods below on the loop."""
        post(self._loop, method, value)

    def add_request(self, request: EngineCoreRequest) -> None:
        """Hand over; one that can't be sent comes back with the reason."""
        try:
            self.client().add_request(request)
        except Exception as error:  # whatever it is, nobody must wait for this request any longer
            text = f"the request can't be sent: {error}"
            output = EngineCoreOutput(request_id=request.request_id, finish_reason=FinishReason.ERROR, error=text)
            self.news.put([output])

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests."""
        self.client().abort(request_ids)

    def call(self, method: str, args: list[Any], answer: Future[UtilityResult]) -> None:
        """Call the core; ``answer`` will have its answer."""
        if self.death is not None:
            answer.set_exception(self.death)
            return
        call_id = next(self._call_ids)
        self._calls[call_id] = answer
        try:
            self.client().call(UtilityCall(call_id=call_id, method=method, args=args))
        except Exception as error:  # whatever it is, nobody must wait for the answer any longer
            del self._calls[call_id]
            answer.set_exception(EngineError(f"{method[:80]} can't be called: {error}"))

    def close(self) -> None:
        """From any thread: stop the core, or its start; returns when it and this thread have ended."""
        if os.getpid() != self._pid:  # a fork of the program forgets its copy
            return
        post(self._loop, lambda _: self._stopping.set(), None)
        if threading.current_thread() is not self._thread:  # where the garbage collector may run as well
            self._thread.join()

    def _run(self, connect: Connect) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._live(connect))

    async def _live(self, connect: Connect) -> None:
        """From the start to the end."""
        connecting = asyncio.ensure_future(connect())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((connecting, stopping), return_when=asyncio.FIRST_COMPLETED)
        connecting.cancel()
        try:
            client = await connecting
        except BaseException as error:  # whatever it is, it is raised where the client is waited for
            stopping.cancel()
            self._connected.set_exception(error)
            return
        self._connected.set_result(client)
        reading = asyncio.create_task(self._read(client))
        await stopping
        try:
            await client.stop(self._grace_s)
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
            self._release()
            self._die(EngineDeadError("the engine was shut down"))

    async def _read(self, client: AsyncCoreClient) -> None:
        self._die(await read_until_death(client, self._take))

    def _take(self, message: EngineCoreOutputs) -> None:
        self.events.extend(message.events)
        self.stats = message.stats or self.stats
        if message.utility is not None:
            self._calls.pop(message.utility.call_id).set_result(message.utility)
        if message.outputs:
            self.news.put(message.outputs)

    def _die(self, death: EngineDeadError) -> None:
        if self.death is not None:
            return
        self.death = death
        for answer in self._calls.values():
            answer.set_exception(death)
        self._calls.clear()
        self.news.put(death)
