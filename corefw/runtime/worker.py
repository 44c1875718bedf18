"""The worker: one rank's device, model, cache and runner. The same for every platform."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from corefw.errors import ConfigError, EngineError
from corefw.interfaces.executor import WorkerReport
from corefw.models.build import build_model, make_build_context
from corefw.runtime.kv_pages import KVPages
from corefw.runtime.memory import available_kv_bytes
from corefw.runtime.model_runner.attention_metadata import AttentionMetadataAssembly
from corefw.runtime.model_runner.batch_state import BatchState
from corefw.runtime.model_runner.execution import Execution, RunnableModel
from corefw.runtime.model_runner.input_preparation import InputPreparation
from corefw.runtime.model_runner.runner import ModelRunner
from corefw.runtime.model_runner.sampling_output import SamplingOutput
from corefw.runtime.sampling.sampler import Sampler
from corefw.runtime.warm_up import warm_up

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.interfaces.attention import AttentionBackend
    from corefw.interfaces.kv_cache import KVCacheSpec
    from corefw.interfaces.platform import DeviceRuntime, Platform
    from corefw.messages.outputs import ModelRunnerOutput
    from corefw.messages.scheduling import SchedulerOutput
    from corefw.plugin_system.manager import PluginManager

__all__ = ["Worker"]


class Worker:
    """Made with the model loaded; then ``report``, ``initialize``, and steps. Used by one thread.

    Args:
        config: the engine's.
        plugins: the engine's.
        local_rank: place among the ranks of this machine.

    Raises:
        ConfigError: the model, its files or the device can't be used as configured.
    """

    def __init__(self, config: EngineConfig, plugins: PluginManager, local_rank: int = 0) -> None:
        self._config = config
        platform: Platform = plugins.get("platform_plugins", config.platform)()
        self._runtime: DeviceRuntime = platform.runtime(local_rank)
        self._runtime.seed_everything(config.model.seed)
        build, selections = make_build_context(config, self._runtime.device, plugins)
        self._model = cast(RunnableModel, build_model(config, build, plugins))
        self._backend: type[AttentionBackend] = build.attention_backend
        bound = tuple(build.binder.selections)
        self._decisions = tuple((item.what, item.chosen, item.why) for item in (*selections, *bound))
        self._sampler = Sampler(_tokenizer_size(config))
        self._runner: ModelRunner | None = None
        self._remote: Mapping[str, Callable[..., Any]] = {
            "batch_request_ids": self.batch_request_ids,
            "memory_bytes": self.memory_bytes,
        }

    def report(self) -> WorkerReport:
        """Measure a dummy run and say what the cache may take and needs."""
        block_size = self._block_size()
        specs = {layer.spec.name: layer.kv_cache_spec(block_size) for layer in self._model.attention_layers}
        available = available_kv_bytes(self._config, self._runtime, self._model, self._sampler, specs.values())
        return WorkerReport(
            kv_cache_specs=specs,
            available_kv_bytes=available,
            attention_backend=self._backend.name,
            decisions=self._decisions,
        )

    def initialize(self, plan: RuntimePlan) -> None:
        """Allocate the cache, make the runner, and run once through it."""
        layers = {layer.spec.name: layer for layer in self._model.attention_layers}
        groups = [[layers[name] for name in names] for names in plan.layer_groups]
        specs: list[dict[str, KVCacheSpec]] = [
            {layer.spec.name: layer.kv_cache_spec(plan.block_size) for layer in group} for group in groups
        ]
        pages = KVPages(specs, plan.num_blocks, self._runtime.device)
        for name, view in pages.views(self._backend).items():
            layers[name].bind_pages(view)
        scheduler = self._config.scheduler
        self._runner = ModelRunner(
            batch=BatchState(scheduler.max_num_seqs, len(groups)),
            pages=pages,
            preparation=InputPreparation(
                self._runtime.device,
                max_num_tokens=scheduler.max_num_batched_tokens,
                max_num_seqs=scheduler.max_num_seqs,
                max_num_blocks=-(-plan.max_model_len // plan.block_size),
                num_groups=len(groups),
                block_size=plan.block_size,
            ),
            assembly=AttentionMetadataAssembly(
                self._backend,
                [[layer.spec for layer in group] for group in groups],
                plan.block_size,
                scheduler.max_num_seqs,
            ),
            execution=Execution(self._model),
            sampling=SamplingOutput(self._sampler),
        )
        warm_up(self._runner, plan, max_num_tokens=scheduler.max_num_batched_tokens)
        self._runtime.synchronize()

    def execute_model(self, scheduled: SchedulerOutput) -> None:
        """Start a step."""
        self._initialized().execute_model(scheduled)

    def sample_tokens(self) -> ModelRunnerOutput:
        """Finish the step started last."""
        return self._initialized().sample_tokens()

    def call(self, method: str, *args: Any) -> Any:
        """Call by name one of the methods that are meant for it.

        Raises:
            EngineError: there is no such method.
        """
        if method not in self._remote:
            raise EngineError(f"a worker has no method {method[:80]!r} to call; it has {', '.join(self._remote)}")
        return self._remote[method](*args)

    def memory_bytes(self) -> dict[str, int]:
        """Memory of this rank's device: total, free, and this process's peak."""
        runtime = self._runtime
        return {
            "total": runtime.total_memory_bytes(),
            "free": runtime.free_memory_bytes(),
            "peak": runtime.peak_memory_bytes(),
        }

    def batch_request_ids(self) -> list[str]:
        """Requests that this rank holds, in row order."""
        return list(self._initialized().batch.request_ids)

    def _initialized(self) -> ModelRunner:
        if self._runner is None:
            raise EngineError("the worker got a step before initialize")
        return self._runner

    def _block_size(self) -> int:
        """What the user gave, checked, or the backend's own."""
        capabilities = self._backend.capabilities
        given = self._config.cache.block_size
        if given is None:
            return capabilities.default_block_size
        if capabilities.block_sizes and given not in capabilities.block_sizes:
            accepted = ", ".join(map(str, capabilities.block_sizes))
            raise ConfigError(
                f"--block-size {given} isn't accepted by attention backend {self._backend.name}; use one of {accepted}"
            )
        return given


def _tokenizer_size(config: EngineConfig) -> int:
    """Ids that can be decoded; the embedding may have more rows."""
    info = config.model_info
    return min(int(info.hf_config.get("tokenizer_size") or info.vocab_size), info.vocab_size)
