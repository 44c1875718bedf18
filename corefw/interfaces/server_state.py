"""What an endpoint gets to see of the running server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig, ServerConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.errors import EngineDeadError
    from corefw.frontend.renderer import Renderer
    from corefw.frontend.sampling_defaults import SamplingDefaults
    from corefw.frontend.text_engine import TextEngine
    from corefw.interfaces.engine_client import EngineClient
    from corefw.messages.events import PluginEvent
    from corefw.messages.outputs import SchedulerStats
    from corefw.plugin_system.manager import PluginManager
    from corefw.server.admission import Admission
    from corefw.server.in_flight import InFlight

__all__ = ["EventSubscription", "ServedEngine", "ServerState"]


class EventSubscription(Protocol):
    """Yields events in order; ends when it is closed, and with EngineDeadError when the engine dies.

    Whoever reads too slowly loses the oldest ones; ``num_dropped`` counts them.
    """

    num_dropped: int

    def __aiter__(self) -> AsyncIterator[PluginEvent]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def close(self) -> None: ...


class ServedEngine(Protocol):
    """What the server itself asks of an engine; generating goes through ``ServerState.text``."""

    @property
    def plan(self) -> RuntimePlan:
        """What the core decided at start: context length, blocks, backends."""

    @property
    def stats(self) -> SchedulerStats:
        """What the core said last."""

    @property
    def death(self) -> EngineDeadError | None:
        """Why the engine is dead; None while it isn't."""

    @property
    def trouble(self) -> str | None:
        """Why it can't be relied on at the moment, though it isn't dead: it is being restarted, it shows no sign of
        life. None while it can."""

    async def call(self, method: str, *args: Any) -> Any:
        """Call the core by name with plain data.

        Raises:
            EngineError: the core refused the call, or is dead.
        """

    async def call_plugin(self, name: str, *args: Any, timeout_s: float = 30.0) -> Any:
        """Call ``plugin.method``, a function that a plugin offers in the core or its workers, with plain data.

        Returns:
            what it answered; where it lives in workers, a list of their answers by rank.

        Raises:
            RequestError: there is no such function, it failed, it took too long, or the arguments aren't plain data.
            EngineError: the core failed, or is dead.
        """

    def subscribe(self, *topics: str) -> EventSubscription:
        """Events that plugins in the core and its workers tell from now on.

        Args:
            topics: ``plugin.topic``, or ``plugin`` for all of a plugin's; none for all there are.
        """


class ServerState(Protocol):
    """The server as endpoints see it: given to ``Endpoint.startup``, and behind every request. Nothing in it is set."""

    @property
    def config(self) -> EngineConfig:
        """As resolved."""

    @property
    def server_config(self) -> ServerConfig:
        """Limits on what clients may send, and more."""

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names under which the model is served; the first is the one told to clients."""

    @property
    def tasks(self) -> frozenset[str]:
        """What the model can do: ``generate`` …"""

    @property
    def started_s(self) -> float:
        """``time.time()`` of the start."""

    @property
    def engine(self) -> ServedEngine:
        """For health, figures and the plan."""

    @property
    def client(self) -> EngineClient:
        """Generates: admitted, observed, and ended with the server. What a plugin should use."""

    @property
    def text(self) -> TextEngine:
        """Generates text updates from token ids, each sequence in a place of ``admission``."""

    @property
    def renderer(self) -> Renderer:
        """Turns texts and messages into token ids; has the tokenizer. Call it off the event loop for long texts."""

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """What the model says where a request is silent."""

    @property
    def in_flight(self) -> InFlight:
        """The requests that are being answered; whoever generates enters its scope, so that it ends with the client."""

    @property
    def admission(self) -> Admission:
        """Places for sequences. ``text`` takes those that it needs; whoever enters ``places(n)`` before it renders what
        it generates is told earlier that there is no room, and ``text`` then uses those."""

    @property
    def plugins(self) -> PluginManager | None:
        """For reports; None where there is no manager."""

    @property
    def num_token_ids(self) -> int:
        """Token ids that clients may send are below."""

    def served_name(self, asked: str | None) -> str:
        """The model's name as the client asked for it; a client that names none gets the served one.

        Raises:
            NotFoundError: no model of that name is served.
        """
