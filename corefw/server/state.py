"""What the handlers of a running server share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import Request

from corefw.errors import NotFoundError
from corefw.frontend.sampling_defaults import SamplingDefaults
from corefw.interfaces.engine_client import EngineClient
from corefw.interfaces.server_state import ServedEngine
from corefw.observability.metrics import Metrics
from corefw.observability.tracing import Tracing
from corefw.server.admission import Admission
from corefw.server.embeds_memory import EmbedsMemory
from corefw.server.in_flight import InFlight
from corefw.server.observation import make_metrics
from corefw.server.plugin_client import PluginClient
from corefw.server.plugin_states import PluginStates
from corefw.server.stat_loggers import StatLoggers

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig, ServerConfig
    from corefw.frontend.io_processing import IOProcessing
    from corefw.frontend.renderer import Renderer
    from corefw.frontend.text_engine import TextEngine
    from corefw.plugin_system.manager import PluginManager

__all__ = ["TASKS", "ServedEngine", "ServerState", "state_of"]

# What every model can do.
TASKS = frozenset({"generate"})

# Of a wrong name, in the error: enough to recognise it.
_MAX_SHOWN_NAME = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerState:
    """Made once, before the app.

    Attributes:
        config, server_config: as resolved.
        engine: for health, figures and the plan.
        text: generates text updates, within the admission limit.
        renderer: turns texts and messages into token ids.
        plugins: for the report; None where there is no manager.
        plugin_states: what plugins have become, in this process and in the core.
        metrics: this server's own.
        stat_loggers: of plugins.
        model_names: names under which the model is served, the first is the one told to clients.
        tasks: what the model can do.
        started_s: ``time.time()`` of the start.
        in_flight: the requests that are being answered.
        admission: places for sequences.
        embeds_memory: room for prompts given as embeddings.
        sampling_defaults: what the model says where a request is silent.
        tracing: what makes spans; None where they aren't wanted.
        processing: the IO processor; None where there is none.
    """

    config: EngineConfig
    server_config: ServerConfig
    engine: ServedEngine
    text: TextEngine
    renderer: Renderer
    plugins: PluginManager | None
    plugin_states: PluginStates
    metrics: Metrics
    stat_loggers: StatLoggers
    model_names: tuple[str, ...]
    started_s: float
    tasks: frozenset[str] = TASKS
    in_flight: InFlight
    admission: Admission
    embeds_memory: EmbedsMemory
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    tracing: Tracing | None = None
    processing: IOProcessing | None = None

    @classmethod
    def build(
        cls,
        *,
        engine: ServedEngine,
        text: TextEngine,
        renderer: Renderer,
        plugins: PluginManager | None,
        config: EngineConfig,
        server_config: ServerConfig,
        started_s: float,
        tracing: Tracing | None = None,
        processing: IOProcessing | None = None,
    ) -> ServerState:
        """The state of a server for one model.

        Raises:
            ConfigError: the model's own sampling defaults are unusable.
            PluginError: a stat logger that was named can't be made.
        """
        names = config.model.served_model_name or (config.model.model,)
        admission = Admission(server_config.max_concurrent_requests)
        plugin_states = PluginStates(plugins, engine)
        return cls(
            config=config,
            server_config=server_config,
            engine=engine,
            text=text.limited_by(admission),
            renderer=renderer,
            plugins=plugins,
            plugin_states=plugin_states,
            metrics=make_metrics(names[0], engine, config, server_config, plugin_states),
            stat_loggers=StatLoggers.collect(plugins, config, lambda: engine.stats),
            tracing=tracing,
            model_names=names,
            started_s=started_s,
            processing=processing,
            in_flight=InFlight(server_config.request_timeout),
            admission=admission,
            embeds_memory=EmbedsMemory(server_config.total_body_bytes),
            sampling_defaults=SamplingDefaults.of_model(config.model, config.model_info),
        )

    @property
    def client(self) -> EngineClient:
        """The engine for what plugins generate."""
        return PluginClient(self)

    @property
    def num_token_ids(self) -> int:
        """Token ids that clients may send are below: those that tokenizer and model both know."""
        return min(self.renderer.tokenizer.vocab_size, self.config.model_info.vocab_size)

    @property
    def modalities(self) -> frozenset[str]:
        """What chats may have besides text."""
        return frozenset() if self.processing is None else self.processing.modalities

    def served_name(self, asked: str | None) -> str:
        """The model's name as the client asked for it; a client that names none gets the served one.

        Raises:
            NotFoundError: no model of that name is served.
        """
        if asked is None:
            return self.model_names[0]
        if asked not in self.model_names:
            raise NotFoundError(
                f"the model {asked[:_MAX_SHOWN_NAME]!r} does not exist; this server has {', '.join(self.model_names)}",
                param="model",
                code="model_not_found",
            )
        return asked


def state_of(request: Request) -> ServerState:
    """The state behind a request."""
    state: ServerState = request.app.state.corefw
    return state
