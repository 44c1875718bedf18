"""What an endpoint gets to see of the running server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig, ServerConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.errors import EngineDeadError
    from corefw.frontend.renderer import Renderer
    from corefw.frontend.sampling_defaults import SamplingDefaults
    from corefw.frontend.text_engine import TextEngine
    from corefw.messages.outputs import SchedulerStats
    from corefw.plugin_system.manager import PluginManager
    from corefw.server.admission import Admission
    from corefw.server.in_flight import InFlight

__all__ = ["ServedEngine", "ServerState"]


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

    async def call(self, method: str, *args: Any) -> Any:
        """Call the core by name with plain data.

        Raises:
            EngineError: the core refused the call, or is dead.
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
