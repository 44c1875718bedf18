"""Executor: runs the scheduler's steps on one or many workers. The only way by which the engine reaches the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.interfaces.kv_cache import KVCacheSpec
    from corefw.messages.outputs import ModelRunnerOutput
    from corefw.messages.scheduling import SchedulerOutput
    from corefw.plugin_system.manager import PluginManager

__all__ = ["Executor", "WorkerReport"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerReport:
    """What a worker knows after loading the model and a dummy run.

    Attributes:
        kv_cache_specs: by layer name, in layer order.
        available_kv_bytes: memory that the KV cache may take on this worker.
        attention_backend: chosen name.
        decisions: (what, chosen, why) taken in the worker.
    """

    kv_cache_specs: dict[str, KVCacheSpec]
    available_kv_bytes: int
    attention_backend: str
    decisions: tuple[tuple[str, str, str], ...] = ()


class Executor(ABC):
    """Owns the workers. Used by one thread, the engine core's.

    ``execute_model`` and ``sample_tokens`` come in pairs: the first starts the forward pass of a step, the second
    finishes it, so that a grammar mask can be made in between.

    Attributes:
        name: the plugin's name.
        returns_early: the two return before the step is done, whatever the device, so that the engine core's process
            can put the next one together meanwhile.
    """

    name: ClassVar[str]
    returns_early: ClassVar[bool] = False
    api_version: ClassVar[int] = 1

    @abstractmethod
    def __init__(self, config: EngineConfig, plugins: PluginManager) -> None:
        """Start the workers and load the model. Raises ConfigError or EngineStartError with the cause."""

    @abstractmethod
    def reports(self) -> Sequence[WorkerReport]:
        """One a rank, rank order. Called once, before ``initialize``."""

    @abstractmethod
    def initialize(self, plan: RuntimePlan) -> None:
        """Tell every worker the plan; they allocate the cache and warm up."""

    @abstractmethod
    def execute_model(self, scheduled: SchedulerOutput) -> Future[None]:
        """Start a step. Returns at once where the device allows; the future carries a failure."""

    @abstractmethod
    def sample_tokens(self) -> Future[ModelRunnerOutput]:
        """Finish the step started last. Returns at once where the device allows; not called where that step has failed.

        Further steps may be started before the result is there: up to ``config.max_batches_in_flight`` are on their
        way at once, and finish in the order of their start.
        """

    @abstractmethod
    def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        """Call a worker's method by name with plain data, on every rank; results in rank order."""

    def on_failure(self, callback: Callable[[str], None]) -> None:
        """Register what to call (from any thread) when a worker dies. Default: workers can't die on their own."""
        del callback

    @abstractmethod
    def shutdown(self) -> None:
        """Stop the workers. May be called twice."""
