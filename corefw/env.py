"""The only reader of environment variables. A malformed value is an error, never ignored."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from corefw.errors import ConfigError

__all__ = [
    "LaunchedRank",
    "api_key",
    "apply_child_environment",
    "cache_dir",
    "child_environment",
    "cpu_share",
    "described",
    "device_visibility",
    "hub_offline",
    "launched_rank",
    "log_level",
    "num_threads_are_chosen",
    "plugins_allowlist",
    "python_hash_seed",
    "secrets",
]

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"", "0", "false", "no", "off"}
_SECRET_NAMES = ("KEY", "TOKEN", "PASSWORD", "SECRET")
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


# libgomp's idle threads spin for milliseconds by default; where another process wants the core, each parallel loop then
# costs a time slice. Steps of the demo model on a quiet machine: 10000 is as fast as the default, 1000 a third slower;
# beside three busy processes a step takes a third of the default's time.
_IDLE_THREADS = {"GOMP_SPINCOUNT": "10000"}

# glibc's heap asks for pages of 2 MiB: weights, and all that a step allocates, are read without waiting for address
# translation. Where it isn't read (another libc, or a process that runs already) it does nothing.
_TUNABLES = "GLIBC_TUNABLES"
_HUGE_HEAP = "glibc.malloc.hugetlb"


def _flag(name: str) -> bool:
    value = os.environ.get(name, "").strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise ConfigError(f"{name}={value[:40]!r} is not a switch; use 1 or 0")


def plugins_allowlist() -> str | None:
    """``VLLM_PLUGINS``: None when unset; an empty string means that nothing is allowed."""
    return os.environ.get("VLLM_PLUGINS")


def cache_dir() -> Path:
    """``COREFW_CACHE_DIR``, else ``$XDG_CACHE_HOME/corefw``, else ``~/.cache/corefw``. May not exist yet."""
    explicit = os.environ.get("COREFW_CACHE_DIR")
    if explicit:
        return Path(explicit).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "corefw"


@dataclass(frozen=True, slots=True)
class LaunchedRank:
    """Who this process is, as torchrun (or another launcher with its variables) tells it.

    Attributes:
        rank: among all processes that were launched together.
        world_size: how many there are.
        local_rank: among those on this machine.
        local_world_size: how many of them are on this machine.
        address: where they meet: see ``corefw.runtime.distributed.rendezvous.open_store``.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    address: str


def launched_rank() -> LaunchedRank | None:
    """Read what torchrun sets for the processes that it launches: ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``,
    ``LOCAL_WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT``; None where the first two are unset.

    Raises:
        ConfigError: some are missing, or no sensible numbers.
    """
    if not (os.environ.get("RANK") and os.environ.get("WORLD_SIZE")):
        return None
    rank, world_size = _launch_number("RANK"), _launch_number("WORLD_SIZE", 1)
    local_rank = _launch_number("LOCAL_RANK")
    local_world_size = _launch_number("LOCAL_WORLD_SIZE", 1) if "LOCAL_WORLD_SIZE" in os.environ else world_size
    for name, place, size in (("RANK", rank, world_size), ("LOCAL_RANK", local_rank, local_world_size)):
        if place >= size:
            raise ConfigError(f"{name}={place} isn't one of {size} processes; ranks count from 0")
    host, port = os.environ.get("MASTER_ADDR", ""), _launch_number("MASTER_PORT", 1)
    if not host:
        raise ConfigError("MASTER_ADDR is unset; whoever launches ranks has to say where they meet, as torchrun does")
    place_name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if not _flag("TORCHELASTIC_USE_AGENT_STORE"):
        return LaunchedRank(rank, world_size, local_rank, local_world_size, f"tcp://{place_name}/corefw")
    run = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    address = f"agent://{place_name}/corefw/{quote(run, safe='')}/{attempt}"
    return LaunchedRank(rank, world_size, local_rank, local_world_size, address)


def _launch_number(name: str, low: int = 0) -> int:
    text = os.environ.get(name, "")
    if not text.isascii() or not text.isdigit() or int(text) < low:
        raise ConfigError(f"{name}={text[:40]!r} is no number from {low} on; torchrun sets it for what it launches")
    return int(text)


def hub_offline() -> bool:
    """``HF_HUB_OFFLINE`` or ``TRANSFORMERS_OFFLINE``: never ask the hub."""
    return _flag("HF_HUB_OFFLINE") or _flag("TRANSFORMERS_OFFLINE")


def python_hash_seed() -> str | None:
    """``PYTHONHASHSEED`` as it was set, None for no fixed seed (unset, or ``random``)."""
    seed = os.environ.get("PYTHONHASHSEED", "random")
    return None if seed in ("", "random") else seed


def api_key() -> str | None:
    """``COREFW_API_KEY``: a key that clients must send, besides those of ``--api-key``."""
    return os.environ.get("COREFW_API_KEY") or None


def log_level() -> str:
    """``COREFW_LOG_LEVEL``: DEBUG, INFO (default), WARNING or ERROR."""
    level = os.environ.get("COREFW_LOG_LEVEL", "INFO").strip().upper()
    if level not in _LEVELS:
        raise ConfigError(f"COREFW_LOG_LEVEL={level[:40]!r} is unknown; use one of {', '.join(_LEVELS)}")
    return level


def cpu_share() -> str | None:
    """``COREFW_CPUS``: of the CPUs of a machine those that the parent left to this process; None for all."""
    return os.environ.get("COREFW_CPUS") or None


def num_threads_are_chosen() -> bool:
    """Whether the user said how many threads a process computes with (``OMP_NUM_THREADS``)."""
    return bool(os.environ.get("OMP_NUM_THREADS"))


def device_visibility(variable: str) -> str | None:
    """A variable by which a driver hides devices (``CUDA_VISIBLE_DEVICES``), as it is set; None where it isn't."""
    return os.environ.get(variable)


def child_environment(path: Sequence[str] = (), own: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process that computes: this one's, with defaults that must be set before torch loads.

    Args:
        path: folders where the child looks for modules first.
        own: what this child alone has.
    """
    defaults = {} if "OMP_WAIT_POLICY" in os.environ else _IDLE_THREADS
    tunables = [entry for entry in os.environ.get(_TUNABLES, "").split(":") if entry]
    if not any(entry.startswith(f"{_HUGE_HEAP}=") for entry in tunables):
        tunables.append(f"{_HUGE_HEAP}=1")
    inherited = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    first = {"PYTHONPATH": os.pathsep.join([*path, *inherited])} if path else {}
    return {**defaults, **os.environ, **first, _TUNABLES: ":".join(tunables), **(own or {})}


def apply_child_environment() -> None:
    """Give this process, before torch loads, what ``child_environment`` gives children that compute."""
    os.environ.update(child_environment())


def secrets() -> tuple[str, ...]:
    """Values of the variables that hold secrets by their names: what reports mustn't show, wherever it comes from."""
    return tuple(value for name, value in os.environ.items() if name.endswith(_SECRET_NAMES))


def described() -> dict[str, str]:
    """Every variable that bears on corefw and is set, secrets as ``(set)``; for reports."""
    prefixes = ("COREFW_", "VLLM_", "HF_", "OMP_", "GOMP_", "KMP_", "MKL_", "CUDA_VISIBLE_DEVICES", "TRANSFORMERS_")
    return {
        name: "(set)" if any(word in name for word in _SECRET_NAMES) else value[:200]
        for name, value in sorted(os.environ.items())
        if name.startswith(prefixes)
    }
