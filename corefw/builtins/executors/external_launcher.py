"""Ranks that somebody else started: torchrun runs a script once a rank, and each has the whole engine, driven alike."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from corefw import env
from corefw.errors import ConfigError, EngineDeadError, EngineError
from corefw.interfaces.executor import Executor, WorkerReport
from corefw.messages.codec import Codec
from corefw.messages.outputs import ModelRunnerOutput
from corefw.runtime.device import make_device_runtime
from corefw.runtime.distributed.futures import settled

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.env import LaunchedRank
    from corefw.messages.scheduling import SchedulerOutput
    from corefw.plugin_system.manager import PluginManager
    from corefw.runtime.distributed.groups import RankGroups
    from corefw.runtime.worker import Worker

__all__ = ["ExternalLauncherExecutor"]

_T = TypeVar("_T")
_NAME = "external_launcher"
_BY_ID = ("prompt_logprobs", "extra", "failed", "refused")  # of an output: values by request id
# Every rank makes its engines in the same order, so that equal numbers are the same engine.
_engines = itertools.count()


class _Numbers:
    """Numbers of the requests that are under way, by the order in which they came: ids are each rank's own."""

    def __init__(self) -> None:
        self._count = itertools.count()
        self._by_id: dict[str, int] = {}

    def follow(self, scheduled: SchedulerOutput) -> None:
        """Take note of who comes and goes."""
        for request_id in scheduled.finished_request_ids:
            self._by_id.pop(request_id, None)
        for request in scheduled.new_requests:
            if request.request_id not in self._by_id:
                self._by_id[request.request_id] = next(self._count)

    def summary(self, scheduled: SchedulerOutput) -> list[Any]:
        """What a step computes, in few words."""
        tokens = [[self._by_id[request_id], count] for request_id, count in scheduled.num_scheduled_tokens.items()]
        return [scheduled.step, sorted(tokens), sorted(self._by_id[each] for each in scheduled.preempted_request_ids)]

    def own_names(self, foreign: Mapping[str, int]) -> dict[str, str]:
        """This rank's id for each of another one's."""
        names = {number: request_id for request_id, number in self._by_id.items()}
        return {request_id: names[number] for request_id, number in foreign.items()}

    def of(self, request_ids: Iterable[str]) -> dict[str, int]:
        """The numbers of some."""
        return {request_id: self._by_id[request_id] for request_id in request_ids}


class ExternalLauncherExecutor(Executor):
    """One rank, in this process, among others whose scripts do the same in the same order.

    Every rank schedules for itself. That comes to the same on all of them, as what it depends on does: requests, the
    number of blocks (the least of all ranks), and tokens, which the output rank tells the others. Each step is
    compared; ranks that drifted apart stop with an error.
    """

    name: ClassVar[str] = _NAME

    def __init__(self, config: EngineConfig, plugins: PluginManager) -> None:
        from corefw.runtime.distributed.agreement import check_agreement
        from corefw.runtime.distributed.groups import RankGroups
        from corefw.runtime.worker import Worker  # brings torch, which this module must not

        launched = _launched(config)
        address = f"{launched.address}/{next(_engines)}"
        self._codec = Codec(ModelRunnerOutput)
        self._output_rank = config.parallel.grid.output_rank
        self._numbers = _Numbers()
        self._running: Worker | None = None
        runtime = make_device_runtime(config, plugins, launched.local_rank)
        self._groups: RankGroups = RankGroups.of_engine(
            config,
            plugins,
            rank=launched.rank,
            address=address,
            device=runtime.device,
            local_rank=launched.local_rank,
            on_one_machine=launched.local_world_size == launched.world_size,
        )
        try:
            check_agreement(self._groups.world, config)
            self._running = Worker(config, plugins, self._groups, runtime)
        except BaseException:
            self._groups.close()
            raise

    def reports(self) -> Sequence[WorkerReport]:
        from corefw.runtime.distributed.worker_messages import RankReport

        mine = msgspec.msgpack.encode(RankReport.of(self._worker().report()))
        reports = self._groups.world.all_gather_object(mine)
        return [msgspec.msgpack.decode(each, type=RankReport).report() for each in reports]

    def initialize(self, plan: RuntimePlan) -> None:
        self._worker().initialize(plan)

    def execute_model(self, scheduled: SchedulerOutput) -> Future[None]:
        return settled(lambda: self._together(lambda worker: self._execute(worker, scheduled)))

    def sample_tokens(self) -> Future[ModelRunnerOutput]:
        return settled(lambda: self._together(self._sample))

    def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        value = msgspec.to_builtins(self._worker().call(method, *args), builtin_types=(bytes,))
        return self._groups.world.all_gather_object(value)

    def shutdown(self) -> None:
        if self._running is not None:
            self._running.shutdown()
        self._running = None
        self._groups.close()

    def _together(self, work: Callable[[Worker], _T]) -> _T:
        """Others wait for what this rank fails to do: where it fails, they have to know."""
        worker = self._worker()
        try:
            return work(worker)
        except EngineDeadError:
            raise
        except Exception as error:
            self._groups.close()
            rank = self._groups.place.rank
            raise EngineDeadError(f"rank {rank} failed in a step, and the others can't go on: {error}") from error

    def _execute(self, worker: Worker, scheduled: SchedulerOutput) -> None:
        self._numbers.follow(scheduled)
        step = self._numbers.summary(scheduled)
        world = self._groups.world
        # Before anything is computed: collectives of unequal sizes would end the process without a word.
        if not world.is_same(hashlib.blake2b(msgspec.msgpack.encode(step), digest_size=8).digest()):
            raise EngineDeadError(_drifted(world.all_gather_object(step)))
        worker.execute_model(scheduled)

    def _sample(self, worker: Worker) -> ModelRunnerOutput:
        own = worker.sample_tokens()
        is_output = self._groups.place.rank == self._output_rank
        world = self._groups.world
        if is_output:
            frames = [bytes(frame) for frame in self._codec.encode(own)]
            world.broadcast_object([self._numbers.of(_named_in(own)), frames], self._output_rank)
            return own
        numbers, frames = world.broadcast_object(source=self._output_rank)
        output = _renamed(self._codec.decode(frames), self._numbers.own_names(numbers))
        return msgspec.structs.replace(
            output, transfers=own.transfers, events=own.events, num_dropped_events=own.num_dropped_events
        )

    def _worker(self) -> Worker:
        if self._running is None:
            raise EngineError("the executor has been shut down")
        return self._running


def _launched(config: EngineConfig) -> LaunchedRank:
    """Who this process is.

    Raises:
        ConfigError: nobody launched it as a rank, or not as many as the sizes make, or what is set needs one scheduler.
    """
    launched, size = env.launched_rank(), config.parallel.grid.replica_size
    command = f"torchrun --nproc-per-node {size} SCRIPT"
    if launched is None:
        raise ConfigError(f"executor {_NAME} runs where RANK and WORLD_SIZE are set: start the script with {command}")
    if launched.world_size != size:
        raise ConfigError(
            f"{launched.world_size} ranks were launched, but the parallel sizes make {size}: start with {command}"
        )
    if config.parallel.data_parallel_size != 1:
        raise ConfigError(f"executor {_NAME} runs one engine; --data-parallel-size has to be 1")
    if config.kv_transfer.kv_connector is not None:
        raise ConfigError(f"executor {_NAME} has a scheduler a rank, and a KV connector needs one for all; use mp")
    return launched


def _named_in(output: ModelRunnerOutput) -> set[str]:
    """All requests that an output speaks of."""
    return {*output.request_ids, *(request_id for name in _BY_ID for request_id in getattr(output, name))}


def _renamed(output: ModelRunnerOutput, names: Mapping[str, str]) -> ModelRunnerOutput:
    """The same output, of requests with these names."""
    changes: dict[str, Any] = {
        name: {names[request_id]: value for request_id, value in getattr(output, name).items()} for name in _BY_ID
    }
    return msgspec.structs.replace(output, request_ids=[names[each] for each in output.request_ids], **changes)


def _drifted(steps: Sequence[Sequence[Any]]) -> str:
    told = "; ".join(f"rank {rank}: step {step[0]}, {_tokens(step[1])}" for rank, step in enumerate(steps))
    return f"the ranks don't compute the same step ({told}); scripts have to call the engine alike on every rank"


def _tokens(scheduled: Sequence[Sequence[int]]) -> str:
    shown = ", ".join(f"{count} tokens of request {number}" for number, count in scheduled[:3])
    return (shown or "nothing") + (" …" if len(scheduled) > 3 else "")
