"""The client of a core in a process of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from corefw.engine.clients.base import AsyncCoreClient, Mailbox, post
from corefw.errors import EngineDeadError, EngineError
from corefw.messages.codec import Codec
from corefw.messages.control import RequestKind, UtilityCall, WaveOrder
from corefw.messages.request import EngineCoreRequest
from corefw.observability.logging import get_logger

if TYPE_CHECKING:
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.engine.clients.link import CoreLink
    from corefw.engine.process import CoreProcess
    from corefw.messages.outputs import EngineCoreOutputs

__all__ = ["MultiProcessClient"]

_log = get_logger(__name__)


class MultiProcessClient(AsyncCoreClient):
    """Sends from the event loop; a thread receives, and sees the process's exit. Made by ``CoreProcess.connect``."""

    def __init__(self, link: CoreLink, on_progress: Callable[[str], None] | None = None) -> None:
        self.config = link.config
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._on_progress = on_progress
        self._mailbox = Mailbox()
        self._ready: asyncio.Future[RuntimePlan] = self._loop.create_future()
        self._receiver_done = asyncio.Event()
        self._receiver = threading.Thread(target=self._receive, name="core-receiver", daemon=True)
        self._requests = Codec(EngineCoreRequest)
        self._aborts = Codec(list[str])
        self._calls = Codec(UtilityCall)
        self._orders = Codec(WaveOrder)

    @classmethod
    async def connect(cls, link: CoreLink, on_progress: Callable[[str], None] | None = None) -> Self:
        """Wait until the core is ready; when it isn't going to be, nothing of it is left."""
        client = cls(link, on_progress)
        client._receiver.start()
        try:
            client.plan = await client._ready
        except BaseException:  # a cancelled start, too, leaves no process behind
            client._close()
            raise
        return client

    @property
    def process(self) -> CoreProcess:
        """The core's process."""
        return self._link.process

    @property
    def pid(self) -> int:
        """Process id of the core."""
        return self._link.process.pid

    @property
    def alive(self) -> bool:
        """Whether the process exists."""
        return self._link.process.alive

    @property
    def trouble(self) -> str | None:
        return self._link.trouble

    def add_request(self, request: EngineCoreRequest) -> None:
        self._link.send(RequestKind.ADD, self._requests.encode(request))

    def abort(self, request_ids: Sequence[str]) -> None:
        self._link.send(RequestKind.ABORT, self._aborts.encode(list(request_ids)))

    def call(self, call: UtilityCall) -> None:
        self._link.send(RequestKind.UTILITY, self._calls.encode(call))

    def start_wave(self, order: WaveOrder) -> None:
        self._link.send(RequestKind.START_WAVE, self._orders.encode(order))

    async def next_outputs(self) -> EngineCoreOutputs:
        return await self._mailbox.get()

    def deliver(self, outputs: EngineCoreOutputs) -> None:
        """Hand outputs that don't come from the core to whoever waits for the next ones."""
        self._mailbox.put(outputs)

    async def stop(self, timeout_s: float) -> None:
        if self._link.closed:
            return
        try:
            if self.alive:
                self._link.send(RequestKind.SHUTDOWN, [])
                await asyncio.wait_for(self._receiver_done.wait(), timeout_s)
        except TimeoutError:
            _log.warning("the engine core didn't stop within %g s and is killed", timeout_s)
        finally:
            self._close()

    def _close(self) -> None:
        self._link.process.kill()
        self._receiver.join()  # it sees the exit at once
        self._link.process.close()

    def _receive(self) -> None:
        """The receiver thread: from the handshake to the process's exit."""
        try:
            post(self._loop, self._become_ready, self._link.wait_ready(self._report))
            while True:
                self._mailbox.put(self._link.receive())
        except EngineError as error:
            self._fail(error)
        except Exception as error:  # whatever it is, nobody must wait for this thread any longer
            _log.exception("receiving from the engine core failed")
            self._fail(EngineDeadError(f"receiving from the engine core failed: {error}"))

    def _report(self, stage: str) -> None:
        if self._on_progress is not None:
            post(self._loop, self._on_progress, stage)

    def _fail(self, error: EngineError) -> None:
        self._mailbox.fail(error)
        post(self._loop, self._end, error)

    def _become_ready(self, plan: RuntimePlan) -> None:
        if not self._ready.done():
            self._ready.set_result(plan)

    def _end(self, error: EngineError) -> None:
        self._receiver_done.set()
        if not self._ready.done():
            self._ready.set_exception(error)
