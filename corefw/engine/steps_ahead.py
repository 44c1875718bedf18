"""Whether steps are put together ahead: as the user says, or else where that can pay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corefw.errors import ConfigError

if TYPE_CHECKING:
    from corefw.config.engine_config import KVTransferConfig, ParallelConfig, SchedulerConfig
    from corefw.interfaces.platform import Platform
    from corefw.plugin_system.manager import PluginManager

__all__ = ["choose_steps_ahead"]

_WHAT = "async scheduling"


def choose_steps_ahead(
    scheduler: SchedulerConfig,
    parallel: ParallelConfig,
    kv_transfer: KVTransferConfig,
    platform: Platform,
    plugins: PluginManager,
) -> tuple[bool, tuple[str, str, str]]:
    """The value of ``--async-scheduling``, and the decision for the start's report.

    Raises:
        ConfigError: it was asked for, and can't go with something else.
    """
    if scheduler.async_scheduling is None:
        obstacle = _obstacle(scheduler, parallel, kv_transfer, platform, plugins)
        why = obstacle or (
            f"platform {platform.name} computes beside the host, and executor {parallel.executor} returns before a "
            "step is done"
        )
        return obstacle is None, (_WHAT, "on" if obstacle is None else "off", why)
    if scheduler.async_scheduling:
        _check(parallel, kv_transfer)
        return True, (_WHAT, "on", "set by --async-scheduling")
    return False, (_WHAT, "off", "set by --no-async-scheduling")


def _obstacle(
    scheduler: SchedulerConfig,
    parallel: ParallelConfig,
    kv_transfer: KVTransferConfig,
    platform: Platform,
    plugins: PluginManager,
) -> str | None:
    """Why it wouldn't pay, or couldn't be."""
    if platform.computes_on_host:
        return f"platform {platform.name} computes on the cores that put steps together"
    if parallel.pipeline_parallel_size > 1:
        return "pipeline stages keep several steps on their way anyhow"
    if kv_transfer.kv_connector is not None:
        return "a KV connector tells what it loaded when a step is done"
    for group, name, setting, ability, why_not in (
        ("executors", parallel.executor, "--distributed-executor-backend", "returns_early", "is done when it returns"),
        ("schedulers", scheduler.scheduler, "--scheduler", "schedules_ahead", "makes one step at a time"),
    ):
        if ":" in name:  # the class is imported where it runs
            return f"{setting} {name[:80]!r} isn't asked ahead; set --async-scheduling if it can"
        if not getattr(plugins.get(group, name, setting=setting), ability, False):
            return f"{setting.removeprefix('--')} {name} {why_not}"
    return None


def _check(parallel: ParallelConfig, kv_transfer: KVTransferConfig) -> None:
    stages = parallel.pipeline_parallel_size
    if stages > 1:
        raise ConfigError(
            f"--async-scheduling takes a token as given before the first of --pipeline-parallel-size {stages} stages "
            "can have it; leave it out: stages keep several steps on their way anyhow"
        )
    if kv_transfer.kv_connector is not None:
        raise ConfigError(
            "--async-scheduling puts a step together before it is known what --kv-connector loaded in the one before; "
            "leave one of them out"
        )
