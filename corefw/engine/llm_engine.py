"""The engine without a loop of its own: its caller steps it. For tests and offline use."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from corefw.errors import EngineError, RequestError

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.engine.clients.base import SyncCoreClient
    from corefw.engine.core import EngineCore
    from corefw.messages.events import PluginEvent
    from corefw.messages.outputs import EngineCoreOutput, SchedulerStats
    from corefw.messages.request import EngineCoreRequest
    from corefw.plugin_system.manager import PluginManager

__all__ = ["LLMEngine"]

_MAX_UNREAD_EVENTS = 1024


class LLMEngine:
    """A core in this process and thread; made by ``over``, one anywhere.

    Args:
        config: the resolved configuration.
        plugins: the resolved plugin set.
        encode_messages: send every message through the codec, as between processes.

    Raises:
        ConfigError, PluginError, EngineStartError: the engine can't start.

    Attributes:
        stats: of the last step.
    """

    def __init__(self, config: EngineConfig, plugins: PluginManager, encode_messages: bool = False) -> None:
        from corefw.engine.clients.in_process import InProcessClient  # a core elsewhere needs none here

        self._attach(InProcessClient(config, plugins, encode_messages=encode_messages))

    @classmethod
    def over(cls, client: SyncCoreClient) -> Self:
        """An engine whose core is there already; the engine owns the client from now on."""
        engine = cls.__new__(cls)
        engine._attach(client)
        return engine

    def _attach(self, client: SyncCoreClient) -> None:
        self._client = client
        self.stats: SchedulerStats | None = None
        self._events: deque[PluginEvent] = deque(maxlen=_MAX_UNREAD_EVENTS)

    @property
    def config(self) -> EngineConfig:
        """What the core was built from."""
        return self._client.config

    @property
    def plan(self) -> RuntimePlan:
        """What the core decided at start."""
        return self._client.plan

    @property
    def core(self) -> EngineCore:
        """The core itself.

        Raises:
            EngineError: it isn't in this process.
        """
        core: EngineCore | None = getattr(self._client, "core", None)
        if core is None:
            raise EngineError("the engine core is in a process of its own; leave enable_multiprocessing=True out")
        return core

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a request. One that is wrong ends in an output with an error."""
        self._client.add_request(request)

    def abort(self, ids: Sequence[str]) -> None:
        """End requests; unknown ids are ignored."""
        self._client.abort(ids)

    def step(self) -> list[EngineCoreOutput]:
        """Compute a step; the news of its requests.

        Raises:
            EngineDeadError: the workers have gone.
        """
        outputs = self._client.step()
        self.stats = outputs.stats or self.stats
        self._events.extend(outputs.events)
        return outputs.outputs

    def call(self, method: str, *args: Any) -> Any:
        """Call the core by name with plain data.

        Raises:
            RequestError: there is no such call, or it doesn't take these arguments.
            EngineError: the core failed, or is dead.
        """
        return self._client.call(method, args)

    def call_plugin(self, name: str, *args: Any) -> Any:
        """Call a function that a plugin offers in the core or in its workers: see ``AsyncEngine.call_plugin``.

        Raises:
            RequestError: there is no such function, it failed, or the arguments aren't plain data.
        """
        if "." not in name:
            raise RequestError(f"{name[:80]!r} names no plugin's function; it takes plugin.method")
        return self._client.call(name, args)

    def take_events(self) -> list[PluginEvent]:
        """Events that plugins told since the last call; of many unread ones the newest."""
        self._events.extend(self._client.take_events())
        taken = list(self._events)
        self._events.clear()
        return taken

    def has_work(self) -> bool:
        """Whether ``step`` can bring anything."""
        return self._client.has_work()

    def shutdown(self) -> None:
        """Stop the workers. May be called twice."""
        self._client.shutdown()
