"""A server's figures and spans: made before the app, running as long as it does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import corefw
from corefw.interfaces.stat_logger import FinishedRequest
from corefw.observability.metrics import Metrics
from corefw.observability.metrics_log import log_stats
from corefw.observability.tracing import RequestSpan, Tracing

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig, ServerConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.interfaces.hooks.front_end import RequestSource
    from corefw.interfaces.server_state import ServedEngine
    from corefw.messages.sampling import SamplingParams
    from corefw.observability.metrics_record import PromptRecord
    from corefw.server.plugin_states import PluginStates
    from corefw.server.state import ServerState

__all__ = ["ObservedRequest", "RequestFacts", "make_metrics", "make_tracing", "observing"]

# A collector that doesn't answer must not hold up the end.
_LAST_SPANS_S = 2.0


def make_metrics(
    model: str, engine: ServedEngine, config: EngineConfig, server_config: ServerConfig, plugins: PluginStates
) -> Metrics:
    """The metrics of a server for one model."""
    plan = engine.plan
    return Metrics(
        model,
        lambda: engine.stats,
        names=server_config.metrics_names,
        max_model_len=plan.max_model_len,
        info=_info(config, plan),
        cache_info=_cache_info(config, plan),
        plugins=plugins.figures,
        is_ready=lambda: engine.death is None and engine.trouble is None,
    )


def make_tracing(server_config: ServerConfig) -> Tracing | None:
    """What makes spans, where they are wanted.

    Raises:
        ConfigError: see ``Tracing``.
    """
    endpoint = server_config.otlp_traces_endpoint
    return None if endpoint is None else Tracing(endpoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """What figures and spans say of a request.

    Attributes:
        source: where it comes from; ``request_id`` is the answer's.
        arrival_s: on the monotonic clock.
        headers: they may name the span that the request's belongs to.
    """

    source: RequestSource
    arrival_s: float
    headers: Mapping[str, str] = field(default_factory=dict)


class ObservedRequest:
    """Figures and span of one generation; what never ran because its request was wrong is in neither.

    Args:
        state: of the server.
        facts: of the request.
        params: of the request.
        prompts: token ids.
    """

    def __init__(
        self, state: ServerState, facts: RequestFacts, params: SamplingParams, prompts: Sequence[Sequence[int]]
    ) -> None:
        self._source = facts.source
        self._name, self._model = facts.source.request_id or "", facts.source.model or state.model_names[0]
        self._stat_loggers = state.stat_loggers
        lengths = [len(ids) for ids in prompts]
        self._record = state.metrics.record(lengths, params.n, params.max_tokens, facts.arrival_s)
        self._span: RequestSpan | None = None
        if state.tracing is not None:
            self._span = state.tracing.begin(self._name, self._model, params, facts.headers, facts.arrival_s)

    def prompt(self, position: int) -> PromptRecord:
        """What is told of one prompt's progress."""
        return self._record.prompt(position)

    def close(self, failure: Exception | None) -> None:
        """The request has ended, for that reason or because nobody wants the rest. Call it once."""
        self._record.close("abort" if failure is None else "error")
        if self._span is not None:
            self._span.end(self._record.finished, num_prompt_tokens=self._record.num_prompt_tokens, error=failure)
        if self._stat_loggers:
            self._stat_loggers.finished(
                FinishedRequest(
                    request_id=self._name,
                    model=self._model,
                    route=self._source.route,
                    tags=dict(self._source.tags),
                    sequences=tuple(self._record.finished),
                    error=None if failure is None else str(failure) or type(failure).__name__,
                )
            )


@contextlib.asynccontextmanager
async def observing(state: ServerState) -> AsyncGenerator[None, None]:
    """A block in which the engine's state is logged, the plugins' states first; at its end the last spans go out."""
    await state.plugin_states.refresh()
    state.plugin_states.log()
    state.stat_loggers.start()
    log = None
    if not state.server_config.disable_log_stats:
        log = asyncio.create_task(log_stats(lambda: state.engine.stats), name="stats-log")
    try:
        yield
    finally:
        if log is not None:
            log.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await log
        await state.stat_loggers.stop()
        if state.tracing is not None:
            await asyncio.to_thread(state.tracing.shutdown, _LAST_SPANS_S)


def _info(config: EngineConfig, plan: RuntimePlan) -> dict[str, str]:
    return {
        "version": corefw.__version__,
        "model": config.model.model,
        "architecture": config.model_info.architecture,
        "dtype": config.dtype,
        "platform": config.platform,
        "attention_backend": plan.attention_backend,
        "max_model_len": str(plan.max_model_len),
    }


def _cache_info(config: EngineConfig, plan: RuntimePlan) -> dict[str, str]:
    """Under the names that vLLM's cache configuration has, where it is the same thing."""
    return {
        "block_size": str(plan.block_size),
        "cache_dtype": config.cache.kv_cache_dtype,
        "enable_prefix_caching": str(config.cache.enable_prefix_caching),
        "kv_cache_memory_bytes": str(plan.kv_cache_bytes),
        "num_gpu_blocks": str(plan.num_blocks),
        "prefix_caching_hash_algo": config.cache.prefix_caching_hash_algo,
    }
