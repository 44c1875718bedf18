"""Clients of a core in the same process: driven by its caller, or on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from corefw.engine.clients.base import AsyncCoreClient, Mailbox, SyncCoreClient, post
from corefw.engine.core import EngineCore
from corefw.engine.core_loop import CoreLoop
from corefw.errors import CorefwError, EngineDeadError
from corefw.messages.codec import Codec
from corefw.messages.outputs import EngineCoreOutputs
from corefw.messages.request import EngineCoreRequest
from corefw.observability.logging import get_logger

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.messages.control import UtilityCall
    from corefw.messages.events import PluginEvent
    from corefw.plugin_system.manager import PluginManager

__all__ = ["InProcessClient", "ThreadClient"]

T = TypeVar("T")

_log = get_logger(__name__)


class InProcessClient(SyncCoreClient):
    """Calls the core directly.

    Args:
        config: the resolved configuration.
        plugins: the resolved plugin set.
        encode_messages: encode and decode every message, as if there were a process border.
    """

    def __init__(self, config: EngineConfig, plugins: PluginManager, *, encode_messages: bool = False) -> None:
        self._encode = encode_messages
        self._requests = Codec(EngineCoreRequest)
        self._aborts = Codec(list[str])
        self._outputs = Codec(EngineCoreOutputs)
        self.config = _through(Codec(type(config)), config) if encode_messages else config
        self.core = EngineCore(self.config, plugins)
        self.plan = _through(Codec(type(self.core.plan)), self.core.plan) if encode_messages else self.core.plan

    def add_request(self, request: EngineCoreRequest) -> None:
        self.core.add_request(_through(self._requests, request) if self._encode else request)

    def abort(self, request_ids: Sequence[str]) -> None:
        ids = list(request_ids)
        if self._encode:
            ids = _through(self._aborts, ids)
        self.core.abort(ids)

    def step(self) -> EngineCoreOutputs:
        outputs = self.core.step() or EngineCoreOutputs()
        return _through(self._outputs, outputs) if self._encode else outputs

    def has_work(self) -> bool:
        return self.core.has_work()

    def call(self, method: str, args: Sequence[Any] = ()) -> Any:
        return self.core.call(method, args)

    def take_events(self) -> list[PluginEvent]:
        return list(self.core.with_events(EngineCoreOutputs()).events)

    def shutdown(self) -> None:
        self.core.shutdown()


class ThreadClient(AsyncCoreClient):
    """Runs the core on a thread; the same face as the client of a process, without sockets."""

    def __init__(self, on_progress: Callable[[str], None] | None) -> None:
        self._event_loop = asyncio.get_running_loop()
        self._on_progress = on_progress
        self._mailbox = Mailbox()
        self._ready: asyncio.Future[None] = self._event_loop.create_future()
        self._ended = asyncio.Event()
        self._thread: threading.Thread

    @classmethod
    async def connect(
        cls, config: EngineConfig, plugins: PluginManager, on_progress: Callable[[str], None] | None = None
    ) -> ThreadClient:
        """Build the core on its thread, and wait until it is ready.

        Raises:
            Exception: what the core's construction raises.
        """
        client = cls(on_progress)
        client.config = config
        client._thread = threading.Thread(target=client._run, args=(config, plugins), name="engine-core", daemon=True)
        client._thread.start()
        await client._ready  # when this is cancelled, _become_ready stops the core
        return client

    def add_request(self, request: EngineCoreRequest) -> None:
        self._loop.add_request(request)

    def abort(self, request_ids: Sequence[str]) -> None:
        self._loop.abort(tuple(request_ids))

    def call(self, call: UtilityCall) -> None:
        self._loop.call(call)

    async def next_outputs(self) -> EngineCoreOutputs:
        return await self._mailbox.get()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    async def stop(self, timeout_s: float) -> None:
        self._loop.stop()
        try:
            await asyncio.wait_for(self._ended.wait(), timeout_s)
        except TimeoutError:  # a thread can't be killed; it ends after the step that it is in
            _log.warning("the engine core didn't stop within %g s", timeout_s)
        else:
            self._thread.join()

    def _run(self, config: EngineConfig, plugins: PluginManager) -> None:
        """The core's thread."""
        try:
            core = EngineCore(config, plugins, self._report)
        except Exception as error:  # raised where the engine is being made
            post(self._event_loop, self._fail_start, error)
            return
        self.plan = core.plan
        self._loop = CoreLoop(core, self._mailbox.put)
        post(self._event_loop, self._become_ready, None)
        self._mailbox.fail(_run_until_dead(self._loop))
        core.shutdown()
        post(self._event_loop, lambda _: self._ended.set(), None)

    def _report(self, stage: str) -> None:
        if self._on_progress is not None:
            post(self._event_loop, self._on_progress, stage)

    def _fail_start(self, error: Exception) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)

    def _become_ready(self, _: None) -> None:
        if self._ready.done():  # cancelled: nobody is going to stop it
            self._loop.stop()
        else:
            self._ready.set_result(None)


def _run_until_dead(loop: CoreLoop) -> EngineDeadError:
    try:
        loop.run()
    except Exception as error:  # the core's end: said once, to everybody
        _log.exception("the engine core crashed")
        reason = str(error) if isinstance(error, CorefwError) else f"{type(error).__name__}: {error}"
        return EngineDeadError(f"the engine core crashed: {reason}")
    return EngineDeadError("the engine core was stopped")


def _through(codec: Codec[T], message: T) -> T:
    return codec.decode(codec.encode(message))
