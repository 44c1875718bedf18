"""How much memory the KV cache may take, measured rather than guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from corefw.errors import ConfigError
from corefw.runtime.model_runner.execution import RunnableModel, dummy_run
from corefw.runtime.sampling.metadata import NO_LOGPROBS, SamplingMetadata
from corefw.runtime.sampling.sampler import MAX_RANDOM_ROWS, Sampler

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.interfaces.kv_cache import KVCacheSpec
    from corefw.interfaces.platform import DeviceRuntime
    from corefw.runtime.graphs.choice import GraphChoice

__all__ = ["available_kv_bytes", "recording_bytes"]


def available_kv_bytes(
    config: EngineConfig,
    runtime: DeviceRuntime,
    model: RunnableModel,
    sampler: Sampler,
    specs: Iterable[KVCacheSpec],
    reserved_bytes: int = 0,
) -> int:
    """Exactly what the user set; else the platform's share of what the largest step leaves free, as far as it's of use.

    Args:
        config: the engine's.
        runtime: the device's.
        model: with its weights.
        sampler: what takes its logits.
        specs: one a layer.
        reserved_bytes: what recorded steps will take.

    Raises:
        ConfigError: what the user set doesn't fit.
    """
    headroom = max(0, _headroom_bytes(config, runtime, model, sampler) - reserved_bytes)
    wanted = config.cache.kv_cache_memory
    if wanted is None:
        return min(runtime.cache_budget_bytes(headroom), _useful_bytes(config, specs))
    if wanted > headroom:
        raise ConfigError(
            f"--kv-cache-memory {wanted} doesn't fit: of {runtime.total_memory_bytes()} bytes, {headroom} are free "
            "beside the weights, the largest step and recorded steps; set at most that, or a smaller "
            "--max-num-batched-tokens"
        )
    return wanted


def recording_bytes(choice: GraphChoice, runtime: DeviceRuntime, model: RunnableModel, max_model_len: int) -> int:
    """What to set aside for recorded steps: as the recorder says, by what the largest of them takes."""
    dispatcher = choice.dispatcher
    num_tokens = dispatcher.sizes[-1]
    num_rows = min(num_tokens, dispatcher.max_num_seqs)
    with _peak_bytes(runtime) as step_bytes:
        dummy_run(model, runtime.device, num_tokens=num_tokens, num_rows=num_rows, max_position=max_model_len)
    return choice.capture.reserve_bytes(max(0, step_bytes()), sum(1 for _ in dispatcher.all()))


def _useful_bytes(config: EngineConfig, specs: Iterable[KVCacheSpec]) -> int:
    """As many requests as may run, each of full length, and the null block. Matters to tiny models alone."""
    num_seqs, length = config.scheduler.max_num_seqs, config.max_model_len
    return sum(num_seqs * spec.max_memory_bytes(length) + spec.page_bytes for spec in specs)


def _headroom_bytes(config: EngineConfig, runtime: DeviceRuntime, model: RunnableModel, sampler: Sampler) -> int:
    """What is free now, less what the largest step took at its peak."""
    free = runtime.free_memory_bytes()
    scheduler = config.scheduler
    num_rows = min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
    with _peak_bytes(runtime) as step_bytes:
        logits = dummy_run(
            model,
            runtime.device,
            num_tokens=scheduler.max_num_batched_tokens,
            num_rows=num_rows,
            max_position=config.max_model_len,
        )
        # The sampler works on groups of rows, so one group has its peak.
        if logits is not None:
            with torch.inference_mode():
                sampler(logits[:MAX_RANDOM_ROWS], _random_sampling(min(num_rows, MAX_RANDOM_ROWS)))
    return max(0, free - step_bytes())


@contextmanager
def _peak_bytes(runtime: DeviceRuntime) -> Iterator[Callable[[], int]]:
    """What is taken on top of what is held already, at the most: read it after the block."""
    runtime.reset_peak_memory()
    before = runtime.peak_memory_bytes()
    yield lambda: runtime.peak_memory_bytes() - before
    runtime.synchronize()


def _random_sampling(num_rows: int) -> SamplingMetadata:
    """The most expensive parameters."""
    whole = np.zeros(num_rows, dtype=np.int64)
    return SamplingMetadata(
        temperature=np.ones(num_rows),
        top_p=np.full(num_rows, 0.9),
        top_k=whole,
        min_p=np.zeros(num_rows),
        seeds=whole,
        positions=whole,
        num_logprobs=np.full(num_rows, NO_LOGPROBS),
    )
