"""An executor whose pipeline stages are threads of this process, with queues between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, ClassVar, TypeVar

import torch

from corefw.config.engine_config import EngineConfig
from corefw.config.runtime_plan import RuntimePlan
from corefw.interfaces.executor import Executor, WorkerReport
from corefw.messages.outputs import ModelRunnerOutput
from corefw.messages.scheduling import SchedulerOutput
from corefw.models.layers.context import TensorParallel
from corefw.plugin_system.manager import PluginManager
from corefw.runtime.distributed.groups import RankGroups
from corefw.runtime.distributed.pipeline_stage import PipelineStage
from corefw.runtime.distributed.rank_group import PlainGroup
from corefw.runtime.worker import Worker

T = TypeVar("T")

STAGED = "tests.runtime.staged_executor:StagedExecutor"
_PATIENCE_S = 60.0


class ThreadStage(PipelineStage):
    """One end of the queues between neighbours."""

    def __init__(self, rank: int, size: int, queues: Sequence[SimpleQueue[dict[str, torch.Tensor]]]) -> None:
        super().__init__()
        self.rank, self.size = rank, size
        self._queues = queues

    def send(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._queues[self.rank].put({name: tensor.clone() for name, tensor in tensors.items()})

    def recv(self) -> dict[str, torch.Tensor]:
        return self._queues[self.rank - 1].get(timeout=_PATIENCE_S)


class StagedExecutor(Executor):
    """Calls return at once; each stage takes them in their order.

    Attributes:
        max_pending: most steps that were on their way at once.
    """

    name: ClassVar[str] = "staged"
    latest: ClassVar[StagedExecutor]

    def __init__(self, config: EngineConfig, plugins: PluginManager) -> None:
        grid = config.parallel.grid
        size = grid.pipeline
        queues: list[SimpleQueue[dict[str, torch.Tensor]]] = [SimpleQueue() for _ in range(size - 1)]
        StagedExecutor.latest = self
        self.workers = [
            Worker(
                config,
                plugins,
                RankGroups(grid.place(rank), TensorParallel(), ThreadStage(rank, size, queues), PlainGroup(), {}),
            )
            for rank in range(size)
        ]
        self.max_pending = self._num_pending = 0
        self.links = queues
        self._calls: list[SimpleQueue[Callable[[], None] | None]] = [SimpleQueue() for _ in self.workers]
        self._threads = [threading.Thread(target=_serve, args=(calls,), daemon=True) for calls in self._calls]
        for thread in self._threads:
            thread.start()

    def reports(self) -> Sequence[WorkerReport]:
        return self._on_all(lambda worker: worker.report())

    def initialize(self, plan: RuntimePlan) -> None:
        self._on_all(lambda worker: worker.initialize(plan))

    def execute_model(self, scheduled: SchedulerOutput) -> Future[None]:
        self._num_pending += 1
        self.max_pending = max(self.max_pending, self._num_pending)
        futures = self._start(lambda worker: worker.execute_model(scheduled))
        # Whatever failed first is the cause.
        return futures[0] if len(futures) == 1 else _AllOf(futures)

    def sample_tokens(self) -> Future[ModelRunnerOutput]:
        last = self._start(lambda worker: worker.sample_tokens())[-1]
        last.add_done_callback(self._landed)
        return last

    def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        return self._on_all(lambda worker: worker.call(method, *args))

    def shutdown(self) -> None:
        for calls in self._calls:
            calls.put(None)
        for thread in self._threads:
            thread.join(_PATIENCE_S)
        for worker in self.workers:
            worker.shutdown()

    def _landed(self, _: object) -> None:
        self._num_pending -= 1

    def _start(self, call: Callable[[Worker], T]) -> list[Future[T]]:
        futures: list[Future[T]] = [Future() for _ in self.workers]
        for worker, calls, future in zip(self.workers, self._calls, futures, strict=True):
            calls.put(lambda worker=worker, future=future: _settle(future, lambda: call(worker)))  # type: ignore[misc]
        return futures

    def _on_all(self, call: Callable[[Worker], T]) -> list[T]:
        return [future.result(_PATIENCE_S) for future in self._start(call)]


class _AllOf(Future[None]):
    """Done when all are; fails as the first of them that failed."""

    def __init__(self, futures: Sequence[Future[None]]) -> None:
        super().__init__()
        self._futures = futures

    def done(self) -> bool:
        return all(future.done() for future in self._futures)

    def result(self, timeout: float | None = None) -> None:
        error = self.exception(timeout)
        if error is not None:
            raise error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        errors = [future.exception(timeout) for future in self._futures]
        return next((error for error in errors if error is not None), None)


def _serve(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except Exception as error:
        future.set_exception(error)
