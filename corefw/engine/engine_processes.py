"""The core processes of one or several engines, as their parent sees them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from corefw.config.parallel import LOCAL_LAUNCHER, ParallelConfig
from corefw.engine.process import CoreProcess
from corefw.errors import ConfigError

if TYPE_CHECKING:
    from corefw.config.args import UserArgs
    from corefw.config.engine_config import EngineConfig
    from corefw.engine.clients.base import AsyncCoreClient
    from corefw.engine.restart_policy import RestartPolicy
    from corefw.interfaces.core_launcher import CoreLauncher
    from corefw.plugin_system.manager import PluginManager

__all__ = ["EngineProcesses", "core_launcher", "wanted_engines"]

_SETTING = "--data-parallel-backend"


def wanted_engines(args: UserArgs) -> ParallelConfig:
    """What the user wants; a plugin may propose otherwise.

    Raises:
        ConfigError: a number can't be.
    """
    return ParallelConfig(**args.section("parallel"))


def core_launcher(config: EngineConfig, plugins: PluginManager) -> CoreLauncher:
    """What is to start the cores; made before any of them, since it sees to what they take.

    Raises:
        ConfigError, PluginError, EngineStartError: it isn't there, or there is too little for so many engines.
    """
    from corefw.plugin_system.class_by_name import class_by_name
    from corefw.plugin_system.starting import starting

    name = config.parallel.core_launcher
    with starting(plugins, "core_launchers", name):
        made: CoreLauncher = class_by_name(plugins, "core_launchers", name, _SETTING)(config, plugins)
    return made


class EngineProcesses:
    """``spawn`` → ``configure`` → ``await connect()``, as of one ``CoreProcess``; ``close`` ends all, at any time."""

    def __init__(self) -> None:
        self._processes: list[CoreProcess] = []
        self._launcher: CoreLauncher | None = None
        self._config: EngineConfig

    @classmethod
    def spawn(cls, wanted: ParallelConfig) -> EngineProcesses:
        """Start the child where one on this machine is wanted. Several get shares of CPUs and devices, which aren't
        known yet."""
        made = cls()
        if _is_one_child(wanted):
            made._processes.append(CoreProcess.spawn())
        return made

    def configure(
        self, config: EngineConfig, launcher: CoreLauncher, *, log_level: str | None, log_format: str = "text"
    ) -> None:
        """Tell every engine what to build. Doesn't wait for that.

        Args:
            config: of the whole.
            launcher: made for it; closed with the processes.
            log_level, log_format: of the cores' records.

        Raises:
            ConfigError: this model's engines can't be spread so.
            EngineStartError: a core has died, or no socket could be made.
        """
        self._launcher = launcher
        _check_lockstep(config)
        self._config = config
        if _is_one_child(config.parallel) and self._processes:
            self._processes[0].configure(_config_of_one(config, None), log_level=log_level, log_format=log_format)
            return
        self._end_all()  # a plugin proposed something else than the user gave
        num_engines = config.parallel.num_own_engines
        for index in range(num_engines):
            process = CoreProcess(partial(launcher.launch, index))
            self._processes.append(process)
            own = _config_of_one(config, index if num_engines > 1 else None)
            process.configure(own, log_level=log_level, log_format=log_format)

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
        """Kill, and close what this process holds. May be called twice; the client has stopped, where there is one."""
        self._end_all()
        if self._launcher is not None:
            self._launcher.close()

    def _end_all(self) -> None:
        while self._processes:
            self._processes.pop().close()


def _is_one_child(parallel: ParallelConfig) -> bool:
    return parallel.num_own_engines == 1 and parallel.core_launcher == LOCAL_LAUNCHER


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
