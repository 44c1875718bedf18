"""How much memory the KV cache may take, by what steps take: a short one, or the largest where that matters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from corefw.errors import ConfigError
from corefw.models.ops.definitions import MAX_RANDOM_ROWS
from corefw.runtime.model_runner.execution import RunnableModel, dummy_run
from corefw.runtime.sampling.metadata import NO_LOGPROBS, Coordinates, SamplingMetadata
from corefw.runtime.sampling.sampler import Sampler

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.interfaces.kv_cache import KVCacheSpec
    from corefw.interfaces.platform import DeviceRuntime
    from corefw.runtime.graphs.choice import GraphChoice

__all__ = ["KVRoom", "StepMemory"]

# A run of so many tokens says within a factor what the largest step takes: everything in it grows with the tokens, and
# what doesn't is far below the slack.
_PROBE_TOKENS = 64
_PROBE_FACTOR, _PROBE_SLACK_BYTES = 2, 256 * 2**20
_SAMPLED_VALUE_BYTES = 64  # of each logit of a group of rows: eight copies in float64


@dataclass(frozen=True, slots=True)
class KVRoom:
    """What memory there is.

    Attributes:
        available_bytes: for the KV cache.
        reserved_bytes: for recorded steps.
    """

    available_bytes: int
    reserved_bytes: int


class StepMemory:
    """What steps take beside the weights, and so what is left for the KV cache.

    Args:
        config: the engine's.
        runtime: the device's.
        model: with its weights.
        sampler: what takes its logits.
        graphs: what is recorded; None: nothing.
    """

    def __init__(
        self,
        config: EngineConfig,
        runtime: DeviceRuntime,
        model: RunnableModel,
        sampler: Sampler,
        graphs: GraphChoice | None,
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._model = model
        self._sampler = sampler
        self._graphs = graphs
        self._num_tokens = config.scheduler.max_num_batched_tokens

    def kv_room(self, specs: Iterable[KVCacheSpec], agree: Callable[[bool], bool] = bool) -> KVRoom:
        """Exactly what the user set; else the platform's share of what the largest step leaves free, as far as it's of
        use.

        The largest step is run only where what it takes bears on the answer: a machine with much more memory than the
        cache may have needn't compute it.

        Args:
            specs: one a layer.
            agree: whether all ranks say so; they run the same steps.

        Raises:
            ConfigError: what the user set doesn't fit.
        """
        useful = self._useful_bytes(specs)
        free = self._runtime.free_memory_bytes()
        guessed, reserved = self._guess()
        enough = free - guessed - reserved
        wanted = self._config.cache.kv_cache_memory
        if agree(enough >= wanted if wanted else self._budget(enough, useful) == self._budget(free, useful)):
            return KVRoom(wanted or self._budget(enough, useful), reserved)
        reserved = self._reserved(self._recorded_step_bytes())
        headroom = max(0, self._runtime.free_memory_bytes() - self._largest_step_bytes() - reserved)
        if wanted is None:
            return KVRoom(self._budget(headroom, useful), reserved)
        if wanted > headroom:
            raise ConfigError(
                f"--kv-cache-memory {wanted} doesn't fit: of {self._runtime.total_memory_bytes()} bytes, {headroom} "
                "are free beside the weights, the largest step and recorded steps; set at most that, or a smaller "
                "--max-num-batched-tokens"
            )
        return KVRoom(wanted, reserved)

    def _budget(self, headroom: int, useful: int) -> int:
        return min(self._runtime.cache_budget_bytes(max(0, headroom)), useful)

    def _guess(self) -> tuple[int, int]:
        """More than the largest step takes, and than recorded steps will: from a short one."""
        num_tokens = min(_PROBE_TOKENS, self._num_tokens)
        with _peak_bytes(self._runtime) as step_bytes:
            logits = self._run(num_tokens)
        peak, num_logits = step_bytes(), 0 if logits is None else logits.shape[-1]

        def scaled(wanted: int) -> int:
            return _PROBE_FACTOR * peak * math.ceil(wanted / num_tokens) + _PROBE_SLACK_BYTES

        sampling = MAX_RANDOM_ROWS * num_logits * _SAMPLED_VALUE_BYTES
        recorded = 0 if self._graphs is None else self._reserved(scaled(self._graphs.dispatcher.sizes[-1]))
        return scaled(self._num_tokens) + sampling, recorded

    def _reserved(self, step_bytes: int) -> int:
        """What to set aside for recorded steps: as the recorder says, by what the largest of them takes."""
        if self._graphs is None:
            return 0
        return self._graphs.capture.reserve_bytes(step_bytes, sum(1 for _ in self._graphs.dispatcher.all()))

    def _recorded_step_bytes(self) -> int:
        if self._graphs is None:
            return 0
        with _peak_bytes(self._runtime) as step_bytes:
            self._run(self._graphs.dispatcher.sizes[-1])
        return step_bytes()

    def _largest_step_bytes(self) -> int:
        with _peak_bytes(self._runtime) as step_bytes:
            logits = self._run(self._num_tokens)
            # The sampler works on groups of rows, so one group has its peak.
            if logits is not None:
                group = logits[:MAX_RANDOM_ROWS]
                with torch.inference_mode():
                    self._sampler(group, _random_sampling(len(group)))
        return step_bytes()

    def _run(self, num_tokens: int) -> torch.Tensor | None:
        """With as many requests as such a step may have; their logits, where there are any."""
        return dummy_run(
            self._model,
            self._runtime.device,
            num_tokens=num_tokens,
            num_rows=min(num_tokens, self._config.scheduler.max_num_seqs),
            max_position=self._config.max_model_len,
        )

    def _useful_bytes(self, specs: Iterable[KVCacheSpec]) -> int:
        """As many requests as may run, each of full length, and the null block. Matters to tiny models alone."""
        num_seqs, length = self._config.scheduler.max_num_seqs, self._config.max_model_len
        return sum(num_seqs * spec.max_memory_bytes(length) + spec.page_bytes for spec in specs)


@contextmanager
def _peak_bytes(runtime: DeviceRuntime) -> Iterator[Callable[[], int]]:
    """What is taken on top of what is held already, at the most: read it after the block."""
    runtime.reset_peak_memory()
    before = runtime.peak_memory_bytes()
    yield lambda: max(0, runtime.peak_memory_bytes() - before)
    runtime.synchronize()


def _random_sampling(num_rows: int) -> SamplingMetadata:
    """The most expensive parameters: with a bias, as the op that draws may need less than the chain."""
    whole = np.zeros(num_rows, dtype=np.int64)
    first = np.zeros(1, dtype=np.int64)
    return SamplingMetadata(
        temperature=np.ones(num_rows),
        top_p=np.full(num_rows, 0.9),
        top_k=whole,
        min_p=np.zeros(num_rows),
        seeds=whole,
        positions=whole,
        num_logprobs=np.full(num_rows, NO_LOGPROBS),
        bias=Coordinates(first, first),
        bias_values=np.zeros(1, dtype=np.float32),
    )
