"""The executor for ranks on several machines: an actor each, in a placement group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ClassVar

from corefw.errors import EngineError
from corefw.interfaces.executor import Executor, WorkerReport
from corefw.messages.codec import Codec
from corefw.sdk.config import EngineConfig
from corefw.sdk.executors import (
    Call,
    Command,
    ExecuteModel,
    Initialize,
    MakeReport,
    SampleTokens,
    WorkerConfigure,
    joined,
    logging_settings,
    search_path,
    settled,
)
from corefw.sdk.plugins import get_logger
from corefw_executor_ray.environment import passed_on
from corefw_executor_ray.seats import Home, Seat, arrange

if TYPE_CHECKING:
    from corefw.interfaces.platform import Platform
    from corefw.messages.outputs import ModelRunnerOutput
    from corefw.messages.scheduling import SchedulerOutput
    from corefw.sdk.config import RuntimePlan
    from corefw.sdk.executors import Answer
    from corefw.sdk.plugins import PluginManager
    from corefw_executor_ray.rank_group import ActorGroup

__all__ = ["RayExecutor"]

_log = get_logger("ray")

_STOP_S = 3.0


class RayExecutor(Executor):
    """Workers are actors that Ray places; they end with the engine core's connection to the cluster.

    When one rank dies, or doesn't finish a step in which another one failed, the executor has failed as a whole: ranks
    out of step can't go on.

    Attributes:
        homes: where the ranks are, by rank.
    """

    name: ClassVar[str] = "ray"
    returns_early: ClassVar[bool] = True
    homes: tuple[Home, ...] = ()

    def __init__(self, config: EngineConfig, plugins: PluginManager) -> None:
        from corefw_executor_ray.cluster import connect  # ray takes seconds to import

        self._codec: Codec[Command] = Codec(Command)  # type: ignore[arg-type]  # a union is no type
        self._ranks: ActorGroup | None = None
        self._own_connection = connect()
        try:
            self._ranks = _placed(config, plugins)
            self.homes = _start(self._ranks, config)
        except BaseException:
            self.shutdown()
            raise

    def reports(self) -> Sequence[WorkerReport]:
        answers = self._ask(MakeReport())
        return [answer.report.report() for answer in answers if answer.report is not None]

    def initialize(self, plan: RuntimePlan) -> None:
        self._ask(Initialize(plan))

    def execute_model(self, scheduled: SchedulerOutput) -> Future[None]:
        """Done at once: what goes wrong in the forward pass is told when the step is finished."""
        return settled(lambda: self._execute(scheduled))

    def sample_tokens(self) -> Future[ModelRunnerOutput]:
        """Completed by whoever asks it, on the executor's thread."""
        try:
            return self._running.ask(self._codec.encode(SampleTokens()), joined)
        except Exception as error:  # the step border: the caller records it
            failed: Future[ModelRunnerOutput] = Future()
            failed.set_exception(error)
            return failed

    def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        return [answer.value for answer in self._ask(Call(method, list(args)))]

    def on_failure(self, callback: Callable[[str], None]) -> None:
        self._running.on_failure(callback)

    def shutdown(self) -> None:
        """Takes a few seconds at most, whatever the workers do."""
        import ray

        if self._ranks is not None:
            self._ranks.close(_STOP_S)
        self._ranks = None
        if self._own_connection:
            ray.shutdown()
        self._own_connection = False

    def _execute(self, scheduled: SchedulerOutput) -> None:
        self._running.tell(self._codec.encode(ExecuteModel(scheduled)))

    def _ask(self, command: Command) -> Sequence[Answer]:
        return self._running.ask(self._codec.encode(command), lambda answers: answers).result()

    @property
    def _running(self) -> ActorGroup:
        if self._ranks is None:
            raise EngineError("the executor has been shut down")
        return self._ranks


def _placed(config: EngineConfig, plugins: PluginManager) -> ActorGroup:
    """An actor a rank, somewhere in the cluster."""
    from corefw_executor_ray.placement import reserve, resources_of
    from corefw_executor_ray.rank_group import ActorGroup, make_actors

    platform: type[Platform] = plugins.get("platform_plugins", config.platform)
    num_ranks = config.parallel.grid.replica_size
    wanted = resources_of(platform.device_type)
    placement = reserve(wanted, num_ranks, config.parallel.distributed_timeout_seconds)
    return ActorGroup(make_actors(placement, num_ranks, wanted), placement)


def _start(ranks: ActorGroup, config: EngineConfig) -> tuple[Home, ...]:
    """Order the ranks over the nodes, let them meet, and wait until every one has loaded its model; where they are."""
    import ray

    from corefw_executor_ray.rank_actor import packed

    described = packed(Codec(EngineConfig).encode(config))
    homes = [Home(**answer.value) for answer in ranks.each("describe", [(described,)] * len(ranks))]
    seats = arrange(homes, ray.get_runtime_context().get_node_id())
    at = [homes[seat.actor] for seat in seats]
    ranks.seat([seat.actor for seat in seats], [f"worker {rank} on {home.host}" for rank, home in enumerate(at)])
    _tell_placement(config, at)
    port = ranks.first("listen", at[0].host).value
    address = f"agent://{at[0].host}:{port}/ranks"
    near = len({home.node_id for home in at}) == 1
    ranks.each("start", [_start_arguments(config, rank, seat, address, near) for rank, seat in enumerate(seats)])
    return tuple(at)


def _start_arguments(config: EngineConfig, rank: int, seat: Seat, address: str, near: bool) -> tuple[Any, ...]:
    from corefw_executor_ray.rank_actor import packed

    level, log_format = logging_settings()
    message = WorkerConfigure(
        config=config,
        rank=rank,
        address=address,
        log_level=level,
        log_format=log_format,
        search_path=search_path(),
        local_rank=seat.local_rank,
        on_one_machine=near,
    )
    environment = passed_on() | seat.visibility
    return environment, seat.num_local_ranks, packed(Codec(WorkerConfigure).encode(message))


def _tell_placement(config: EngineConfig, homes: Sequence[Home]) -> None:
    nodes = [home.node_id for home in homes]
    places = ", ".join(f"{rank} on {home.host}" for rank, home in enumerate(homes))
    _log.info("ranks on %d node(s) of the Ray cluster: %s", len(set(nodes)), places)
    size = config.parallel.tensor_parallel_size
    if any(len(set(nodes[first : first + size])) > 1 for first in range(0, len(nodes), size)):
        _log.warning("ranks that share every layer are on several nodes: each layer waits for the network")
