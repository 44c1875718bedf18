"""A server's figures and spans: made before the app, running as long as it does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

import corefw
from corefw.observability.metrics import Metrics
from corefw.observability.metrics_log import log_stats
from corefw.observability.tracing import RequestSpan, Tracing

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig, ServerConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.interfaces.server_state import ServedEngine
    from corefw.observability.metrics_record import PromptRecord
    from corefw.server.generation import Generation
    from corefw.server.plugin_states import PluginStates
    from corefw.server.state import ServerState

__all__ = ["ObservedRequest", "make_metrics", "make_tracing", "observing"]

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
    )


def make_tracing(server_config: ServerConfig) -> Tracing | None:
    """What makes spans, where they are wanted.

    Raises:
        ConfigError: see ``Tracing``.
    """
    endpoint = server_config.otlp_traces_endpoint
    return None if endpoint is None else Tracing(endpoint)


class ObservedRequest:
    """Figures and span of one generation; what never ran because its request was wrong is in neither.

    Args:
        generation: of the request.
        prompts: token ids.
    """

    def __init__(self, generation: Generation, prompts: Sequence[Sequence[int]]) -> None:
        state, params, arrival_s = generation.state, generation.params, generation.arrival_s
        lengths = [len(ids) for ids in prompts]
        self._record = state.metrics.record(lengths, params.n, params.max_tokens, arrival_s)
        self._span: RequestSpan | None = None
        if state.tracing is not None:
            self._span = state.tracing.begin(generation.id, generation.model, params, generation.headers, arrival_s)

    def prompt(self, position: int) -> PromptRecord:
        """What is told of one prompt's progress."""
        return self._record.prompt(position)

    def close(self, failure: Exception | None) -> None:
        """The request has ended, for that reason or because nobody wants the rest. Call it once."""
        self._record.close("abort" if failure is None else "error")
        if self._span is not None:
            self._span.end(self._record.finished, num_prompt_tokens=self._record.num_prompt_tokens, error=failure)


@contextlib.asynccontextmanager
async def observing(state: ServerState) -> AsyncGenerator[None, None]:
    """A block in which the engine's state is logged, the plugins' states first; at its end the last spans go out."""
    await state.plugin_states.refresh()
    state.plugin_states.log()
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
