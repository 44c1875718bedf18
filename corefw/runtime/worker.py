"""The worker: one rank's device, model, cache and runner. The same for every platform."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from corefw.errors import EngineError
from corefw.interfaces.executor import WorkerReport
from corefw.interfaces.graphs import GraphCapture
from corefw.interfaces.kv_cache import SlidingWindowSpec
from corefw.models.build import build_model, make_build_context, tensors_of
from corefw.models.layers.context import Stage
from corefw.models.taps import UnknownTapPoint
from corefw.observability.logging import set_log_level
from corefw.plugin_system.calls import PluginCalls
from corefw.plugin_system.events import EventQueue
from corefw.plugin_system.groups import Process
from corefw.plugin_system.making import made_by_plugin, whose
from corefw.runtime.block_size import choose_block_size
from corefw.runtime.device import make_device_runtime
from corefw.runtime.distributed.groups import RankGroups, communicator_of
from corefw.runtime.graphs.choice import choose_graphs
from corefw.runtime.graphs.descriptor import GraphMode
from corefw.runtime.graphs.recorded_steps import RecordedSteps
from corefw.runtime.kv_pages import KVPages
from corefw.runtime.kv_transfer.steps import make_transfer_steps
from corefw.runtime.memory import StepMemory
from corefw.runtime.model_runner.attention_metadata import AttentionMetadataAssembly
from corefw.runtime.model_runner.batch_state import BatchState
from corefw.runtime.model_runner.execution import Execution, RunnableModel, dummy_run
from corefw.runtime.model_runner.input_preparation import InputPreparation, TableLayout
from corefw.runtime.model_runner.prompt_embeds import HeldEmbeds, check_accepts_embeds
from corefw.runtime.model_runner.prompt_logprobs import PromptLogprobsCollector
from corefw.runtime.model_runner.runner import ModelRunner
from corefw.runtime.model_runner.sampling_output import SamplingOutput
from corefw.runtime.model_runner.stage_link import StageLink
from corefw.runtime.model_runner.step_observers import StepObservers, worker_observers
from corefw.runtime.sampling.processors import RequestProcessors, make_processors
from corefw.runtime.sampling.sampler import Sampler
from corefw.runtime.taps import WantedTaps
from corefw.runtime.warm_up import warm_up

if TYPE_CHECKING:
    from torch import nn

    from corefw.config.engine_config import EngineConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.interfaces.attention import AttentionBackend
    from corefw.interfaces.kv_cache import KVCacheSpec
    from corefw.interfaces.platform import DeviceRuntime
    from corefw.messages.outputs import ModelRunnerOutput
    from corefw.messages.request import PlainDict
    from corefw.messages.scheduling import SchedulerOutput
    from corefw.models.layers.context import BuildContext
    from corefw.plugin_system.manager import PluginManager

__all__ = ["Worker"]

_MAX_RECORDING_S = 60.0


class Worker:
    """Made with the model loaded; then ``report``, ``initialize``, and steps. Used by one thread.

    Args:
        config: the engine's.
        plugins: the engine's.
        groups: the other ranks; None where there are none.
        runtime: of this rank's device, where one had to be made to meet the others; else it is made here.

    Raises:
        ConfigError: the model, its files or the device can't be used as configured.
    """

    def __init__(
        self,
        config: EngineConfig,
        plugins: PluginManager,
        groups: RankGroups | None = None,
        runtime: DeviceRuntime | None = None,
    ) -> None:
        self._config = config
        self._plugins = plugins
        self._groups = groups or RankGroups.alone()
        self._rank = self._groups.place.rank
        plugins.load_general(Process.WORKER)
        self._runtime = runtime or make_device_runtime(config, plugins, self._groups.local_rank)
        self._runtime.seed_everything(config.model.seed)
        self._stage = stage = Stage(self._groups.pipeline.rank, self._groups.pipeline.size)
        build, selections = make_build_context(config, self._runtime.device, plugins, self._groups.tensor, stage)
        taps = WantedTaps(config, plugins)
        if stage.size > 1:
            taps.refuse(f"--pipeline-parallel-size {stage.size}")
        model = _build(config, taps.built_into(build), plugins, taps)
        settled = self._runtime.settle_weights(tensors_of(model))
        self._model = cast(RunnableModel, model)
        offered = build.binder.graph_captures()
        capture = made_by_plugin(
            whose(plugins, "platform_plugins", config.platform),
            (GraphCapture, type(None)),
            self._runtime.graph_capture,
            offered,
        )
        self._graphs, recorded = choose_graphs(
            config, capture, build.attention_backend, (*taps.obstacles(), *_collectives(config, plugins))
        )
        check_accepts_embeds(self._model, config)
        self._backend: type[AttentionBackend] = build.attention_backend
        draw = build.binder.bind("drawn")
        chosen = (*selections, *build.binder.selections, *(() if settled is None else (settled,)), recorded)
        for item in chosen:
            plugins.record(item)
        self._decisions = tuple((item.what, item.chosen, item.why) for item in chosen) + taps.decisions()
        self._vocab_size = config.num_token_ids
        self._sampler = Sampler(self._vocab_size, config.model.logprobs_mode, draw)
        # Only the last stage samples.
        processors = make_processors(config, plugins, self._vocab_size) if stage.is_last else ()
        self._processors = RequestProcessors(processors)
        self._specs: dict[str, KVCacheSpec] = {}
        self._reserved_bytes = 0
        self._runner: ModelRunner | None = None
        self._watchers = [*worker_observers(config, plugins), *taps.watchers] if stage.is_last else []
        self._calls = PluginCalls.collect(config, plugins, Process.WORKER)
        self._events = EventQueue.collect(config, plugins, Process.WORKER)
        self._remote: Mapping[str, Callable[..., Any]] = {
            "batch_request_ids": self.batch_request_ids,
            "kv_handshake": self.kv_handshake,
            "dummy_step": self.dummy_step,
            "memory_bytes": self.memory_bytes,
            "recorded_steps": self.recorded_steps,
            "plugin_calls": lambda: list(self._calls.names),
            "set_log_level": set_log_level,
            "call_plugin": self._calls.call,
            "take_events": self._take_events,
        }

    def report(self) -> WorkerReport:
        """Measure what a step takes, and say what the cache may take and needs."""
        block_size = choose_block_size(self._config.cache.block_size, [self._backend])
        specs = {layer.spec.name: layer.kv_cache_spec(block_size) for layer in self._model.attention_layers}
        self._specs = specs
        memory = StepMemory(self._config, self._runtime, self._model, self._sampler, self._graphs)
        room = memory.kv_room(specs.values(), self._agree)
        self._reserved_bytes = room.reserved_bytes
        return WorkerReport(
            kv_cache_specs=specs,
            available_kv_bytes=room.available_bytes,
            attention_backend=self._backend.name,
            decisions=self._decisions,
        )

    def dummy_step(self) -> None:
        """Run the model on one token for nobody: engines that compute together need each other's part of a step."""
        dummy_run(self._model, self._runtime.device, num_tokens=1, num_rows=1, max_position=self._config.max_model_len)

    def initialize(self, plan: RuntimePlan) -> None:
        """Allocate the cache, make the runner, and run once through it."""
        layers = {layer.spec.name: layer for layer in self._model.attention_layers}
        groups = [[layers[name] for name in names if name in layers] for names in plan.layer_groups]
        specs = [{layer.spec.name: self._specs[layer.spec.name] for layer in group} for group in groups]
        block_sizes = plan.group_block_sizes or [plan.block_size] * len(groups)
        layouts = [
            _table_layout(next(iter(group.values()))) if group else TableLayout(block_size)
            for group, block_size in zip(specs, block_sizes, strict=True)
        ]
        clears = self._backend.capabilities.reads_unwritten
        pages = KVPages(specs, plan.num_blocks, self._runtime.device, clears=clears)
        for name, view in pages.views(self._backend).items():
            layers[name].bind_pages(view)
        scheduler = self._config.scheduler
        preparation = InputPreparation(
            self._runtime.device,
            max_num_tokens=scheduler.max_num_batched_tokens,
            max_num_seqs=scheduler.max_num_seqs,
            max_model_len=plan.max_model_len,
            groups=layouts,
        )
        assembly = AttentionMetadataAssembly(
            self._backend,
            [[layer.spec for layer in group] for group in groups],
            [layout.block_size for layout in layouts],
            scheduler.max_num_seqs,
        )
        execution = Execution(self._model, self._vocab_size)
        self._runner = ModelRunner(
            batch=BatchState(scheduler.max_num_seqs, len(groups)),
            pages=pages,
            preparation=preparation,
            assembly=assembly,
            execution=execution,
            sampling=SamplingOutput(self._sampler, self._processors),
            prompt_logprobs=PromptLogprobsCollector(self._sampler, self._vocab_size),
            embeds=HeldEmbeds(self._runtime.device),
        )
        if self._stage.size > 1:
            self._runner.link = StageLink(self._groups.pipeline)
        self._record_steps(self._runner, preparation, assembly, execution.num_choosable)
        warm_up(self._runner, plan, max_num_tokens=scheduler.max_num_batched_tokens)
        self._runtime.synchronize()
        self._runtime.settle_memory()
        self._runner.transfers = make_transfer_steps(
            self._config,
            plan,
            plugins=self._plugins,
            pages=pages,
            layers=layers,
            backend=self._backend,
            specs=self._specs,
            block_sizes=[layout.block_size for layout in layouts],
            rank=self._rank,
        )
        if self._watchers:
            self._runner.observers = StepObservers(self._watchers)

    def _record_steps(
        self,
        runner: ModelRunner,
        preparation: InputPreparation,
        assembly: AttentionMetadataAssembly,
        num_choosable: int | None,
    ) -> None:
        """Before the first step: what is recorded when it is first needed is there after warm-up, for one request."""
        if self._graphs is None:
            return
        runner.recorded = RecordedSteps(
            self._model,
            self._graphs.capture,
            self._graphs.dispatcher,
            preparation,
            assembly,
            budget_bytes=self._reserved_bytes,
            agree=self._agree,
            num_choosable=num_choosable,
        )
        runner.recorded.record_all(_MAX_RECORDING_S)

    def _agree(self, ok: bool) -> bool:
        """Whether it is so on all ranks."""
        return all(self._groups.world.all_gather_object(ok))

    def execute_model(self, scheduled: SchedulerOutput) -> None:
        """Start a step."""
        self._initialized().execute_model(scheduled)

    def sample_tokens(self) -> ModelRunnerOutput:
        """Finish the step started last."""
        output = self._initialized().sample_tokens()
        if self._events is None:
            return output
        events, num_dropped = self._events.take()
        return msgspec.structs.replace(output, events=events, num_dropped_events=num_dropped)

    def shutdown(self) -> None:
        """Let observers, KV connector and other ranks go, and give back model and cache. May be called twice."""
        if self._runner is not None and self._runner.observers is not None:
            self._runner.observers.close()
        if self._runner is not None and self._runner.transfers is not None:
            self._runner.transfers.shutdown()
        self._groups.close()
        # Both lead back here: without a collection, which may be far off, nobody's memory would come back.
        self._runner = None
        self._remote = {}

    def call(self, method: str, *args: Any) -> Any:
        """Call by name one of the methods that are meant for it.

        Raises:
            EngineError: there is no such method.
        """
        if method not in self._remote:
            raise EngineError(f"a worker has no method {method[:80]!r} to call; it has {', '.join(self._remote)}")
        return self._remote[method](*args)

    def kv_handshake(self) -> PlainDict | None:
        """What this rank's half of the KV connector tells the other one."""
        transfers = self._initialized().transfers
        return transfers.handshake() if transfers is not None else None

    def memory_bytes(self) -> dict[str, int]:
        """Memory of this rank's device: total, free, and this process's peak."""
        runtime = self._runtime
        return {
            "total": runtime.total_memory_bytes(),
            "free": runtime.free_memory_bytes(),
            "peak": runtime.peak_memory_bytes(),
        }

    def recorded_steps(self) -> dict[str, Any]:
        """How many steps were replayed, what is recorded, and why other things aren't."""
        recorded = self._runner.recorded if self._runner is not None else None
        if recorded is None:
            return {"num_replays": 0, "recorded": [], "refused": []}
        return {
            "num_replays": recorded.num_replays,
            "recorded": [str(descriptor) for descriptor in recorded.descriptors],
            "refused": recorded.refusals,
        }

    def batch_request_ids(self) -> list[str]:
        """Requests that this rank holds, in row order."""
        return list(self._initialized().batch.request_ids)

    def _take_events(self) -> tuple[list[Any], int]:
        events, num_dropped = ([], 0) if self._events is None else self._events.take()
        return msgspec.to_builtins(events, builtin_types=(bytes,)), num_dropped

    def _initialized(self) -> ModelRunner:
        if self._runner is None:
            raise EngineError("the worker got a step before initialize")
        return self._runner


def _build(config: EngineConfig, build: BuildContext, plugins: PluginManager, taps: WantedTaps) -> nn.Module:
    try:
        model = build_model(config, build, plugins)
    except UnknownTapPoint as error:
        raise taps.explain(error) from error
    taps.connect(model)
    return model


def _collectives(config: EngineConfig, plugins: PluginManager) -> list[tuple[str, frozenset[GraphMode]]]:
    """What ranks do together in a step, where it can't be recorded."""
    if config.parallel.tensor_parallel_size == 1:
        return []
    name = communicator_of(config, plugins)
    if plugins.get("communicators", name).can_be_recorded:
        return []
    return [(f"communicator {name} can't be recorded", frozenset({GraphMode.FULL, GraphMode.PIECEWISE}))]


def _table_layout(spec: KVCacheSpec) -> TableLayout:
    return TableLayout(spec.block_size, spec.sliding_window if isinstance(spec, SlidingWindowSpec) else None)
