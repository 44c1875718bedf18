"""The engine of a program of one's own: in its process, or in others."""

from __future__ import annotations

import sys
from functools import partial

from corefw import env
from corefw.config.args import UserArgs
from corefw.config.parallel import ParallelConfig
from corefw.engine.engine_processes import EngineProcesses, core_launcher, wanted_engines
from corefw.engine.llm_engine import LLMEngine
from corefw.engine.restart_policy import RestartPolicy
from corefw.errors import ConfigError
from corefw.frontend.prepare import Prepared, prepare
from corefw.observability.logging import logging_settings

__all__ = ["open_engine"]


def open_engine(args: UserArgs, enable_multiprocessing: bool | None = None) -> tuple[Prepared, LLMEngine]:
    """Start what the user asks for.

    Args:
        args: what the user said.
        enable_multiprocessing: see ``LLM``.

    Raises:
        ConfigError, PluginError, EngineStartError: it can't start.
    """
    wanted = wanted_engines(args)
    processes = EngineProcesses.spawn(wanted) if enable_multiprocessing or wanted.has_core_processes else None
    try:
        if processes is None and "torch" not in sys.modules:
            env.apply_child_environment()
        prepared = prepare(args, interactive=False)
        parallel = prepared.config.parallel
        if parallel.has_core_processes and enable_multiprocessing is False:
            raise ConfigError(_told_apart(parallel))
        if parallel.has_core_processes:  # a plugin may have proposed it
            processes = processes or EngineProcesses.spawn(parallel)
        if processes is None:
            return prepared, LLMEngine(prepared.config, prepared.plugins)
        if parallel.executor == "external_launcher":
            raise ConfigError(
                "executor external_launcher runs one engine, in the process that the launcher started; leave out "
                "enable_multiprocessing=True, data_parallel_size and data_parallel_backend"
            )
        return prepared, _in_processes(processes, prepared)
    except BaseException:  # Ctrl-C, too
        if processes is not None:
            processes.close()
        raise


def _told_apart(parallel: ParallelConfig) -> str:
    if parallel.num_own_engines > 1:
        wanted, instead = f"data_parallel_size is {parallel.num_own_engines}", "use 1"
    else:
        wanted, instead = f"data_parallel_backend is {parallel.data_parallel_backend}", "leave it out"
    return f"{wanted}, but here the engine has to run in this process; {instead}"


def _in_processes(processes: EngineProcesses, prepared: Prepared) -> LLMEngine:
    from corefw.engine.clients.sync import SyncClient

    level, log_format = logging_settings()
    launcher = core_launcher(prepared.config, prepared.plugins)
    processes.configure(prepared.config, launcher, log_level=level, log_format=log_format)
    return LLMEngine.over(SyncClient(partial(processes.connect, policy=RestartPolicy()), release=processes.close))
