"""The engine of a program of one's own: in its process, or in others."""

from __future__ import annotations

import sys
from functools import partial

from corefw import env
from corefw.config.args import UserArgs
from corefw.engine.engine_processes import EngineProcesses, engine_devices, num_engines
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
    wanted = num_engines(args)
    processes = EngineProcesses.spawn(wanted) if enable_multiprocessing or wanted > 1 else None
    try:
        if processes is None and "torch" not in sys.modules:
            env.apply_child_environment()
        prepared = prepare(args, interactive=False)
        num_own = prepared.config.parallel.num_own_engines
        if num_own > 1 and enable_multiprocessing is False:
            raise ConfigError(f"data_parallel_size is {num_own}, but here the engine has to run in this process; use 1")
        if num_own > 1:  # a plugin may have proposed it
            processes = processes or EngineProcesses.spawn(num_own)
        if processes is None:
            return prepared, LLMEngine(prepared.config, prepared.plugins)
        if prepared.config.parallel.executor == "external_launcher":
            raise ConfigError(
                "executor external_launcher runs one engine, in the process that the launcher started; leave out "
                "enable_multiprocessing=True and data_parallel_size"
            )
        return prepared, _in_processes(processes, prepared)
    except BaseException:  # Ctrl-C, too
        if processes is not None:
            processes.close()
        raise


def _in_processes(processes: EngineProcesses, prepared: Prepared) -> LLMEngine:
    from corefw.engine.clients.sync import SyncClient

    level, log_format = logging_settings()
    devices = engine_devices(prepared.config, prepared.plugins)
    processes.configure(prepared.config, devices, log_level=level, log_format=log_format)
    return LLMEngine.over(SyncClient(partial(processes.connect, policy=RestartPolicy())))
