"""The executor for several ranks on one machine: a process each, commands by one queue, answers by one queue a rank."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from corefw.builtins.executors.mp_answers import AnswerBox, Liveness
from corefw.builtins.executors.mp_processes import WorkerMonitor, WorkerProcess, await_ready, end_all
from corefw.config.child_environment import child_environment
from corefw.errors import EngineDeadError, EngineError
from corefw.interfaces.executor import Executor, WorkerReport
from corefw.messages.codec import Codec
from corefw.runtime.distributed.broadcast_queue import BroadcastWriter, QueueFds
from corefw.runtime.distributed.futures import settled
from corefw.runtime.distributed.rendezvous import LocalMeeting
from corefw.runtime.distributed.worker_messages import (
    Answer,
    Call,
    Command,
    ExecuteModel,
    Initialize,
    MakeReport,
    SampleTokens,
    Stop,
    joined,
)

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.interfaces.platform import Platform
    from corefw.messages.outputs import ModelRunnerOutput
    from corefw.messages.scheduling import SchedulerOutput
    from corefw.plugin_system.manager import PluginManager

__all__ = ["MpExecutor"]

_T = TypeVar("_T")

# Workers that were told to stop have so long; a stop as a whole may take 5 s.
_STOP_S = 3.0
_TELL_STOP_S = 0.5


class MpExecutor(Executor):
    """Workers are children of the engine core's process, and end with it.

    A step's future is completed once all ranks have answered, so that none that failed goes unnoticed. When one rank
    dies, or fails where others wait for it, the executor has failed as a whole: ranks out of step can't go on.
    """

    name: ClassVar[str] = "mp"
    returns_early: ClassVar[bool] = True

    def __init__(self, config: EngineConfig, plugins: PluginManager) -> None:
        self._callback: Callable[[str], None] | None = None
        self._liveness = Liveness(os.eventfd(0, os.EFD_CLOEXEC), self._failed)
        self._commands = QueueFds.create(config.parallel.grid.replica_size)
        self._writer = BroadcastWriter(self._commands, [self._liveness.failed_fd])
        self._codec: Codec[Command] = Codec(Command)  # type: ignore[arg-type]  # a union is no type
        self._workers: list[WorkerProcess] = []
        self._box = AnswerBox([], Codec(Answer).decode, self._liveness)
        self._monitor: WorkerMonitor | None = None
        self._closed = False
        try:
            self._start(config, plugins)
        except BaseException:
            self._close(grace_s=0)
            raise

    def reports(self) -> Sequence[WorkerReport]:
        answers = self._ask(MakeReport(), lambda answers: answers).result()
        return [answer.report.report() for answer in answers if answer.report is not None]

    def initialize(self, plan: RuntimePlan) -> None:
        self._ask(Initialize(plan), lambda answers: answers).result()

    def execute_model(self, scheduled: SchedulerOutput) -> Future[None]:
        """Done at once: what goes wrong in the forward pass is told when the step is finished."""
        return settled(lambda: self._send(ExecuteModel(scheduled)))

    def sample_tokens(self) -> Future[ModelRunnerOutput]:
        """Completed by whoever asks it, on the executor's thread."""
        return self._ask(SampleTokens(), joined, is_step=True)

    def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        return self._ask(Call(method, list(args)), lambda answers: [answer.value for answer in answers]).result()

    def on_failure(self, callback: Callable[[str], None]) -> None:
        self._callback = callback
        if self._liveness.reason is not None:
            callback(self._liveness.reason)

    def shutdown(self) -> None:
        """Takes at most 5 s, whatever the workers do."""
        if not self._closed:
            self._close(_STOP_S if self._tell_stop() else 0)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers, by rank."""
        return tuple(worker.pid for worker in self._workers)

    def _start(self, config: EngineConfig, plugins: PluginManager) -> None:
        platform: type[Platform] = plugins.get("platform_plugins", config.platform)
        devices, num_ranks = platform().device_ids(), len(self._commands.filled)
        for rank in range(num_ranks):
            environment = child_environment(rank, num_ranks, devices=devices)
            self._workers.append(WorkerProcess.spawn(rank, self._commands.of_reader(rank), environment))
        with LocalMeeting() as meeting:
            for worker in self._workers:
                worker.configure(config, meeting.address)
            await_ready(self._workers)
        self._box = AnswerBox([worker.answers for worker in self._workers], Codec(Answer).decode, self._liveness)
        self._monitor = WorkerMonitor(self._workers, self._liveness.fail)

    def _failed(self, reason: str) -> None:
        if self._callback is not None:
            self._callback(reason)
        os.eventfd_write(self._liveness.failed_fd, 1)

    def _ask(self, command: Command, finish: Callable[[list[Answer]], _T], *, is_step: bool = False) -> Future[_T]:
        try:
            self._send(command)
        except Exception as error:  # the step border: the caller records it
            failed: Future[_T] = Future()
            failed.set_exception(error)
            return failed
        return self._box.expect(finish, is_step=is_step)

    def _send(self, command: Command) -> None:
        if self._closed:
            raise EngineError("the executor has been shut down")
        self._liveness.check()
        frames = self._codec.encode(command)
        try:
            self._writer.send(frames, idle=self._box.take_what_is_there)
        except EngineDeadError:
            self._liveness.check()
            raise

    def _tell_stop(self) -> bool:
        """Whether it made sense."""
        deadline = time.monotonic() + _TELL_STOP_S

        def idle() -> None:
            self._box.take_what_is_there()
            if time.monotonic() > deadline:
                raise TimeoutError

        if self._liveness.reason is not None:
            return False
        try:
            self._writer.send(self._codec.encode(Stop()), idle)
        except (TimeoutError, EngineError):  # a worker doesn't take commands any more
            return False
        return True

    def _close(self, grace_s: float) -> None:
        if self._closed:
            return
        self._closed = True
        if self._monitor is not None:
            self._monitor.stop()
        end_all(self._workers, grace_s)
        for worker in self._workers:
            worker.close()
        for each in (self._box, self._writer, self._commands):
            each.close()
        os.close(self._liveness.failed_fd)
