"""One rank's worker as a Ray actor. Commands come and answers go as frames of the core's codec."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray

from corefw.errors import EngineError
from corefw.messages.codec import Codec, Frame
from corefw.sdk.devices import child_environment
from corefw.sdk.executors import Answer, Command, Failure, WorkerConfigure, follow_search_path
from corefw_executor_ray.cluster import own_address
from corefw_executor_ray.environment import enter

if TYPE_CHECKING:
    from torch.distributed import TCPStore

    from corefw.sdk.worker import CommandServer, Worker

__all__ = ["RankActor", "packed"]

Frames = list[bytes]


class RankActor:
    """Every method answers with an encoded ``Answer``: what it raised is in there, as plain data.

    ``describe``, then ``listen`` on one of the ranks, then ``start``, then ``obey`` as often as there are commands.
    ``watch`` runs beside them and returns when the actor stops; where it dies, Ray says so to whoever waits for it.
    """

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._worker: Worker | None = None
        self._server: CommandServer | None = None
        self._store: TCPStore | None = None
        self._commands: Codec[Command] = Codec(Command)  # type: ignore[arg-type]  # a union is no type
        self._answers = Codec(Answer)

    def describe(self, config: Frames) -> Frames:
        """Where it runs, and the devices that Ray gave it."""
        return self._guarded(lambda: Answer(value=_description(config)))

    def listen(self, host: str) -> Frames:
        """Make the place where the ranks meet; the port."""
        return self._guarded(lambda: Answer(value=self._listen(host)))

    def start(self, environment: Mapping[str, str | None], num_local_ranks: int, configure: Frames) -> Frames:
        """Become a rank: meet the others, load the model."""
        return self._guarded(lambda: self._start(environment, num_local_ranks, configure))

    def obey(self, command: Frames) -> Frames | None:
        """See ``CommandServer.obey``."""
        if self._server is None:
            return self._guarded(_not_started)
        frames = self._server.obey(self._commands.decode(command))
        return None if frames is None else packed(frames)

    def watch(self) -> None:
        """Return when the actor stops."""
        self._stopped.wait()

    def stop(self) -> None:
        """Let the worker go. May be called twice."""
        if self._worker is not None:
            self._worker.shutdown()
        self._worker = self._server = self._store = None
        self._stopped.set()

    def _guarded(self, make: Callable[[], Answer]) -> Frames:
        try:
            return packed(self._answers.encode(make()))
        except Exception as error:  # whatever it is, the engine core has to say it
            return packed(self._answers.encode(Answer(failure=Failure.from_exception(error))))

    def _listen(self, host: str) -> int:
        from torch.distributed import TCPStore

        self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        return int(self._store.port)

    def _start(self, environment: Mapping[str, str | None], num_local_ranks: int, configure: Frames) -> Answer:
        message = Codec(WorkerConfigure).decode(configure)
        enter(environment)
        enter(child_environment(message.local_rank or 0, num_local_ranks))
        follow_search_path(message.search_path)
        from corefw.sdk.worker import CommandServer, build_worker, configure_logging  # torch: after the environment

        configure_logging(message.log_level, f"worker-{message.rank}", message.log_format)
        self._worker = build_worker(message)
        self._server = CommandServer(self._worker, is_output_rank=message.is_output_rank)
        return Answer()


def packed(frames: Sequence[Frame]) -> Frames:
    """As Ray can take them."""
    return [bytes(frame) for frame in frames]


def _description(config: Frames) -> dict[str, Any]:
    from corefw.interfaces.platform import Platform
    from corefw.sdk.config import EngineConfig
    from corefw.sdk.plugins import PluginManager

    engine = Codec(EngineConfig).decode(config)
    plugins = PluginManager.from_resolved(engine.plugins.resolved, engine.plugins.plugin_policy)
    platform: type[Platform] = plugins.get("platform_plugins", engine.platform)
    devices = platform().device_ids()
    return {
        "node_id": ray.get_runtime_context().get_node_id(),
        "host": own_address(),
        "pid": os.getpid(),
        "variable": None if devices is None else devices.variable,
        "devices": [] if devices is None else list(devices.names),
    }


def _not_started() -> Answer:
    raise EngineError("the worker hasn't been started")
