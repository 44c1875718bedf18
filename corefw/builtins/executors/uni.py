"""The executor for one rank: the engine core's own process runs the worker."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ClassVar

from corefw.errors import ConfigError, EngineError
from corefw.interfaces.executor import Executor, WorkerReport
from corefw.runtime.distributed.futures import settled

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.messages.outputs import ModelRunnerOutput
    from corefw.messages.scheduling import SchedulerOutput
    from corefw.plugin_system.manager import PluginManager
    from corefw.runtime.worker import Worker

__all__ = ["UniExecutor"]


class UniExecutor(Executor):
    """Calls block until the worker is done; the futures they return are done already."""

    name: ClassVar[str] = "uni"

    def __init__(self, config: EngineConfig, plugins: PluginManager) -> None:
        from corefw.runtime.worker import Worker  # brings torch, which this module must not

        num_ranks = config.parallel.grid.replica_size
        if num_ranks != 1:
            raise ConfigError(
                f"executor uni runs one rank, but the parallel sizes make {num_ranks}: "
                "choose another with --distributed-executor-backend"
            )
        self._running: Worker | None = Worker(config, plugins)

    def reports(self) -> Sequence[WorkerReport]:
        return [self._worker().report()]

    def initialize(self, plan: RuntimePlan) -> None:
        self._worker().initialize(plan)

    def execute_model(self, scheduled: SchedulerOutput) -> Future[None]:
        return settled(lambda: self._worker().execute_model(scheduled))

    def sample_tokens(self) -> Future[ModelRunnerOutput]:
        return settled(lambda: self._worker().sample_tokens())

    def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        return [self._worker().call(method, *args)]

    def shutdown(self) -> None:
        if self._running is not None:
            self._running.shutdown()
        self._running = None

    def _worker(self) -> Worker:
        if self._running is None:
            raise EngineError("the executor has been shut down")
        return self._running
