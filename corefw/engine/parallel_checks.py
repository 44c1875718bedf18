"""Whether a grid of ranks fits the model and the machine, told before any rank is started. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corefw.config.parallel import LOCAL_LAUNCHER
from corefw.errors import ConfigError
from corefw.host import Host

if TYPE_CHECKING:
    from corefw.config.model_info import ModelInfo
    from corefw.config.parallel import ParallelConfig
    from corefw.plugin_system.manager import PluginManager

__all__ = ["check_communicator", "check_fits_machine", "check_fits_model"]

_LOCAL_EXECUTORS = ("uni", "mp")
# Each has its own torch, some 250 MB; past this they only push each other out of memory.
_MIN_ALLOWED = 64
_ALLOWED_PER_CPU = 4


def check_communicator(parallel: ParallelConfig, plugins: PluginManager) -> None:
    """The communicator that was named is there; nothing is imported where it is.

    Raises:
        PluginError: it isn't, or may not be loaded.
    """
    named = parallel.communicator
    if named is not None and named not in plugins.names("communicators"):
        plugins.get("communicators", named, setting="--communicator")


def check_fits_model(parallel: ParallelConfig, info: ModelInfo) -> None:
    """No rank without a layer or a query head.

    Raises:
        ConfigError: there would be one.
    """
    limits = (
        ("--pipeline-parallel-size", parallel.pipeline_parallel_size, "num_hidden_layers", "layers"),
        ("--tensor-parallel-size", parallel.tensor_parallel_size, "num_attention_heads", "query heads"),
    )
    for flag, size, key, what in limits:
        most = info.hf_config.get(key, size)  # a plugin's model may be described otherwise
        if size > most:
            raise ConfigError(f"{flag} {size} is more than the model's {most} {what}; use at most {most}")


def check_fits_machine(parallel: ParallelConfig) -> None:
    """A mistyped size would start processes until memory is gone.

    Raises:
        ConfigError: far more processes would compute than there are CPUs.
    """
    if parallel.executor not in _LOCAL_EXECUTORS or parallel.core_launcher != LOCAL_LAUNCHER:
        return
    num_processes = parallel.num_own_engines * parallel.grid.replica_size
    num_cpus = Host().usable_cpus()
    most = max(_MIN_ALLOWED, _ALLOWED_PER_CPU * num_cpus)
    if num_processes > most:
        sizes = " x ".join(
            f"{flag} {size}"
            for flag, size in (
                ("--data-parallel-size", parallel.num_own_engines),
                ("--pipeline-parallel-size", parallel.pipeline_parallel_size),
                ("--tensor-parallel-size", parallel.tensor_parallel_size),
            )
            if size > 1
        )
        raise ConfigError(
            f"{sizes} would be {num_processes} processes on this machine, whose {num_cpus} CPUs carry at most {most}"
        )
