"""A scheduler over real plugins and a small cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

from corefw.config.engine_config import (
    CacheConfig,
    CompilationConfig,
    EngineConfig,
    FrontendConfig,
    LoadConfig,
    ModelConfig,
    ParallelConfig,
    PluginConfig,
    SchedulerConfig,
)
from corefw.config.model_info import ModelFiles, ModelInfo
from corefw.config.runtime_plan import RuntimePlan
from corefw.engine.scheduler.scheduler import DefaultScheduler
from corefw.interfaces.kv_cache import AttentionSpec, FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from corefw.interfaces.scheduler import SchedulingDecision
from corefw.messages.outputs import ModelRunnerOutput
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.messages.scheduling import SchedulerOutput
from corefw.plugin_system.manager import PluginManager

BLOCK_SIZE = 4


@cache
def plugins() -> PluginManager:
    return PluginManager.discover()


@dataclass
class Gate:
    """A blocker that the test opens."""

    reason: str = "grammar is being compiled"
    is_open: bool = False

    def ready(self) -> bool:
        return self.is_open


class OneStrategy:
    """The plugins, with this strategy whatever name is asked for."""

    def __init__(self, strategy: SchedulingDecision) -> None:
        self._strategy = strategy
        self.load_all = plugins().load_all
        self.collect, self.guard, self.record = plugins().collect, plugins().guard, plugins().record
        self.names, self.resolved = plugins().names, lambda: ()

    def get(self, _group: str, _name: str, *, setting: str) -> Callable[[], SchedulingDecision]:
        del setting
        return lambda: self._strategy


def make_config(
    *,
    scheduler: SchedulerConfig | None = None,
    cache: CacheConfig | None = None,
    max_model_len: int | None = None,
    num_stages: int = 1,
) -> EngineConfig:
    files = ModelFiles(reference="tiny", source="local", root="/", weights=())
    info = ModelInfo(
        files=files,
        loader="gguf",
        architecture="LlamaForCausalLM",
        hf_config={},
        checkpoint_dtype="float32",
        max_position=64,
        vocab_size=1_000_000_000,
        eos_ids=(0,),
    )
    return EngineConfig(
        model=ModelConfig(max_model_len=max_model_len),
        load=LoadConfig(),
        cache=cache or CacheConfig(),
        scheduler=scheduler or SchedulerConfig(),
        parallel=ParallelConfig(pipeline_parallel_size=num_stages),
        compilation=CompilationConfig(),
        plugins=PluginConfig(),
        frontend=FrontendConfig(),
        model_info=info,
        dtype="float32",
        platform="cpu",
    )


def make_spec(block_size: int = BLOCK_SIZE, window: int | None = None) -> AttentionSpec:
    shape = {"block_size": block_size, "num_kv_heads": 1, "head_size": 2, "dtype": "float32"}
    if window is None:
        return FullAttentionSpec(**shape)  # type: ignore[arg-type]
    return SlidingWindowSpec(**shape, sliding_window=window)  # type: ignore[arg-type]


def make_scheduler(
    *,
    num_blocks: int = 50,
    max_model_len: int = 64,
    prefix_caching: bool = True,
    strategy: SchedulingDecision | None = None,
    specs: Sequence[KVCacheSpec] = (),
    kv_events: bool = False,
    hash_algo: str = "sha256",
    num_stages: int = 1,
    **limits: object,
) -> DefaultScheduler:
    config = make_config(
        scheduler=SchedulerConfig(**limits),  # type: ignore[arg-type]
        cache=CacheConfig(
            enable_prefix_caching=prefix_caching, kv_events=kv_events, prefix_caching_hash_algo=hash_algo
        ),
        num_stages=num_stages,
    )
    specs = specs or [make_spec()]
    plan = RuntimePlan(
        num_blocks=num_blocks,
        block_size=math.gcd(*(spec.block_size for spec in specs)),
        max_model_len=max_model_len,
        kv_cache_bytes=0,
        attention_backend="none",
        layer_groups=tuple((f"layer{index}",) for index in range(len(specs))),
    )
    chosen = plugins() if strategy is None else OneStrategy(strategy)
    return DefaultScheduler(config, plan, specs, cast(PluginManager, chosen))


def make_request(name: str, num_prompt_tokens: int = 5, **fields: object) -> EngineCoreRequest:
    """A request whose prompt is unlike that of any other name, unless ``prompt_ids`` is given."""
    first = 1000 * sum(map(ord, name))
    values: dict[str, object] = {
        "request_id": name,
        "prompt_ids": list(range(first, first + num_prompt_tokens)),
        "params": SamplingParams(max_tokens=4),
    }
    return EngineCoreRequest(**(values | fields))  # type: ignore[arg-type]


def result_of(scheduled: SchedulerOutput, **sampled: list[int]) -> ModelRunnerOutput:
    """What a worker answers that sampled these tokens, by request id."""
    request_ids = list(scheduled.num_scheduled_tokens)
    return ModelRunnerOutput(
        request_ids=request_ids, sampled_token_ids=[sampled.get(request_id, []) for request_id in request_ids]
    )
