"""The inside of a worker's process: commands in, answers out, one rank's worker between them."""

from __future__ import annotations

import gc
import socket
from typing import TYPE_CHECKING, Any

import msgspec

from corefw.errors import EngineDeadError
from corefw.messages.codec import Codec, Frame
from corefw.messages.control_channel import Channel, StartFailed, follow_search_path
from corefw.observability.logging import configure_logging, get_logger
from corefw.runtime.device import make_device_runtime
from corefw.runtime.distributed.broadcast_queue import BroadcastReader, BroadcastWriter, QueueFds
from corefw.runtime.distributed.groups import RankGroups
from corefw.runtime.distributed.worker_messages import (
    Answer,
    Call,
    Command,
    ExecuteModel,
    Failure,
    Initialize,
    MakeReport,
    RankReport,
    SampleTokens,
    StartMessage,
    Stop,
    WorkerConfigure,
    WorkerReady,
)

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.interfaces.platform import DeviceRuntime
    from corefw.plugin_system.manager import PluginManager
    from corefw.runtime.worker import Worker

__all__ = ["CommandServer", "build_worker", "run_worker"]

_log = get_logger(__name__)


def run_worker(control: socket.socket, commands: str, answers: str) -> int:
    """Build the worker that the parent asks for, and obey until the parent says stop.

    Returns:
        The process's exit status: 0 after a stop, 1 when the start failed.
    """
    channel: Channel[StartMessage] = Channel(control, StartMessage)
    message = channel.receive()
    if not isinstance(message, WorkerConfigure):
        return 1
    follow_search_path(message.search_path)
    configure_logging(message.log_level, f"worker-{message.rank}", message.log_format)
    try:
        worker = build_worker(message)
    except Exception as error:  # whatever it is, the parent has to say it
        channel.send(StartFailed.from_exception(error))
        return 1
    codec: Codec[Command] = Codec(Command)  # type: ignore[arg-type]  # a union is no type
    reader = BroadcastReader(QueueFds.from_text(commands), codec.decode, [control.fileno()])
    writer = BroadcastWriter(QueueFds.from_text(answers), [control.fileno()])
    grid = message.config.parallel.grid.replica
    _log.info("rank %d of %d has loaded the model", message.rank, grid.world_size)
    channel.send(WorkerReady())
    try:
        _serve(CommandServer(worker, is_output_rank=message.is_output_rank), reader, writer)
    finally:
        worker.shutdown()
    return 0


def _serve(server: CommandServer, reader: BroadcastReader[Command], writer: BroadcastWriter) -> None:
    """Until told to stop, or until the parent has gone."""
    while True:
        try:
            command = reader.receive()
        except EngineDeadError:
            return
        if isinstance(command, Stop):
            return
        answer = server.obey(command)
        if answer is not None:
            writer.send(answer)


def build_worker(message: WorkerConfigure) -> Worker:
    """One rank's worker, its model loaded, once all the ranks have met."""
    from corefw.plugin_system.groups import Process
    from corefw.plugin_system.manager import PluginManager
    from corefw.plugin_system.settings import restore_settings
    from corefw.plugin_system.starting import starting
    from corefw.runtime.worker import Worker  # brings torch

    config = message.config
    plugins = PluginManager.from_resolved(config.plugins.resolved, config.plugins.plugin_policy)
    with starting(plugins):
        plugins.load_general(Process.WORKER)
        restore_settings(plugins, config.plugin_settings)
        return Worker(config, plugins, *_meet(config, plugins, message))


def _meet(
    config: EngineConfig, plugins: PluginManager, message: WorkerConfigure
) -> tuple[RankGroups, DeviceRuntime | None]:
    """The other ranks, and the device with which this one met them."""
    if config.parallel.grid.replica_size == 1:
        return RankGroups.alone(), None
    local_rank = message.rank if message.local_rank is None else message.local_rank
    runtime = make_device_runtime(config, plugins, local_rank)
    groups = RankGroups.of_engine(
        config,
        plugins,
        rank=message.rank,
        address=message.address,
        device=runtime.device,
        local_rank=message.local_rank,
        on_one_machine=message.on_one_machine,
    )
    return groups, runtime


class CommandServer:
    """Obeys commands in their order, wherever they come from. A failing one is answered, and the next one comes.

    Args:
        worker: this rank's.
        is_output_rank: whether a step's output is this rank's to tell.
    """

    def __init__(self, worker: Worker, *, is_output_rank: bool) -> None:
        self._worker = worker
        self._is_output_rank = is_output_rank
        self._codec = Codec(Answer)
        self._step_error: Exception | None = None

    def obey(self, command: Command) -> list[Frame] | None:
        """The answer, encoded; None for a command that has none."""
        if isinstance(command, ExecuteModel):
            self._execute(command)
            return None
        try:
            return self._codec.encode(self._answer(command))
        except Exception as error:  # the step border
            if not isinstance(command, Call):  # whose failure is its caller's matter
                _log.exception("%s failed", type(command).__name__)
            return self._codec.encode(Answer(failure=Failure.from_exception(error)))

    def _execute(self, command: ExecuteModel) -> None:
        self._step_error = None
        try:
            self._worker.execute_model(command.scheduled)
        except Exception as error:  # the step border: told when the step is to be finished
            self._step_error = error

    def _answer(self, command: Command) -> Answer:
        match command:
            case SampleTokens():
                return self._sample()
            case Call(method, args):
                return Answer(value=_plain(self._worker.call(method, *args)))
            case MakeReport():
                return Answer(report=RankReport.of(self._worker.report()))
            case Initialize(plan):
                self._worker.initialize(plan)
                # What lives until the end isn't worth walking in every collection.
                gc.collect()
                gc.freeze()
        return Answer()

    def _sample(self) -> Answer:
        error, self._step_error = self._step_error, None
        if error is not None:
            raise error
        output = self._worker.sample_tokens()
        if self._is_output_rank:
            return Answer(output=output)
        return Answer(transfers=output.transfers, events=output.events, num_dropped_events=output.num_dropped_events)


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, builtin_types=(bytes,))
