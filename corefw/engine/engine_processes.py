"""The core processes of one or several engines, as their parent sees them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from corefw.config.engine_config import ParallelConfig
from corefw.engine.process import CoreProcess
from corefw.errors import ConfigError

if TYPE_CHECKING:
    from corefw.config.args import UserArgs
    from corefw.config.device_ids import DeviceIds
    from corefw.config.engine_config import EngineConfig
    from corefw.engine.clients.base import AsyncCoreClient
    from corefw.engine.restart_policy import RestartPolicy
    from corefw.interfaces.platform import Platform
    from corefw.plugin_system.manager import PluginManager

__all__ = ["EngineProcesses", "engine_devices", "num_engines"]


def num_engines(args: UserArgs) -> int:
    """How many the user wants of this process; a plugin may propose otherwise.

    Raises:
        ConfigError: a number can't be.
    """
    return ParallelConfig(**args.section("parallel")).num_own_engines


def engine_devices(config: EngineConfig, plugins: PluginManager) -> DeviceIds | None:
    """The devices that engines share out among themselves; None where there is one, or devices have no numbers."""
    if config.parallel.num_own_engines == 1:
        return None
    from corefw.plugin_system.starting import created

    platform: Platform = created(plugins, "platform_plugins", config.platform)
    return platform.device_ids()


class EngineProcesses:
    """``spawn`` → ``configure`` → ``await connect()``, as of one ``CoreProcess``; ``close`` ends all, at any time."""

    def __init__(self) -> None:
        self._processes: list[CoreProcess] = []
        self._config: EngineConfig

    @classmethod
    def spawn(cls, num_engines: int) -> EngineProcesses:
        """Start the child where there is to be one. Several get shares of CPUs and devices, which aren't known yet."""
        made = cls()
        if num_engines == 1:
            made._processes.append(CoreProcess.spawn())
        return made

    def configure(
        self, config: EngineConfig, devices: DeviceIds | None, *, log_level: str | None, log_format: str = "text"
    ) -> None:
        """Tell every engine what to build. Doesn't wait for that.

        Args:
            config: of the whole.
            devices: this process's, where the platform numbers them.
            log_level, log_format: of the cores' records.

        Raises:
            ConfigError: there are too few devices for so many engines, or this model's can't be spread so.
            EngineStartError: a child has died, or no socket could be made.
        """
        _check_lockstep(config)
        self._config = config
        num_engines = config.parallel.num_own_engines
        if (num_engines == 1) != bool(self._processes):  # a plugin proposed another number than the user gave
            self.close()
            self._processes = [CoreProcess.spawn()] if num_engines == 1 else []
        if num_engines == 1:
            self._processes[0].configure(_config_of_one(config, None), log_level=log_level, log_format=log_format)
            return
        for index in range(num_engines):
            process = CoreProcess.spawn(environment=_environment(config, devices, index))
            self._processes.append(process)
            process.configure(_config_of_one(config, index), log_level=log_level, log_format=log_format)

    async def connect(
        self, on_progress: Callable[[str], None] | None = None, policy: RestartPolicy | None = None
    ) -> AsyncCoreClient:
        """Wait until every engine is ready.

        Args:
            on_progress: called on the event loop with each stage of the start.
            policy: when an engine that died is started again; None: never, and none is watched.

        Raises:
            EngineStartError: one could not start; the others are ended.
        """
        if _in_lockstep(self._config):
            policy = None  # the others wait for the dead one inside a step: all would have to start anew
        connecting = [asyncio.ensure_future(_connected(process, on_progress, policy)) for process in self._processes]
        try:
            clients = await asyncio.gather(*connecting)
        except BaseException:
            for task in connecting:
                task.cancel()
            for client in await asyncio.gather(*connecting, return_exceptions=True):
                if not isinstance(client, BaseException):
                    await client.stop(0)
            raise
        if len(clients) == 1:
            return clients[0]
        from corefw.engine.clients.data_parallel import DataParallelClient

        return DataParallelClient(self._config, clients)

    def close(self) -> None:
        """Kill, and close what this process holds. May be called twice; a client's ``stop`` does it already."""
        for process in self._processes:
            process.close()


async def _connected(
    process: CoreProcess, on_progress: Callable[[str], None] | None, policy: RestartPolicy | None
) -> AsyncCoreClient:
    client = await process.connect(on_progress)
    if policy is None:
        return client
    from corefw.engine.supervisor import SupervisedClient

    return SupervisedClient(client, policy)


def _config_of_one(config: EngineConfig, index: int | None) -> EngineConfig:
    """An engine is alone, as far as its core and its ranks are concerned."""
    rank = config.parallel.data_parallel_rank if index is None else index
    alone = dataclasses.replace(
        config.parallel, data_parallel_size=1, data_parallel_rank=rank, lockstep=_in_lockstep(config)
    )
    return dataclasses.replace(config, parallel=alone)


def _in_lockstep(config: EngineConfig) -> bool:
    wanted = config.parallel.lockstep or config.model_info.needs_lockstep
    return wanted and config.parallel.num_own_engines > 1


def _check_lockstep(config: EngineConfig) -> None:
    if not (config.parallel.lockstep or config.model_info.needs_lockstep):
        return
    if config.parallel.data_parallel_rank is not None:
        raise ConfigError(
            "this model's engines compute together, which servers of their own can't; leave out --data-parallel-rank"
        )
    if _in_lockstep(config) and config.max_batches_in_flight > 1:
        raise ConfigError(
            "this model's engines compute together, one step at a time; use --pipeline-parallel-size 1, without "
            "--async-scheduling"
        )


def _environment(config: EngineConfig, devices: DeviceIds | None, index: int) -> dict[str, str]:
    from corefw.config.child_environment import child_environment

    size = config.parallel.grid.replica_size
    own_devices = None if devices is None else range(index * size, (index + 1) * size)
    return child_environment(index, config.parallel.data_parallel_size, devices=devices, logical_ids=own_devices)
