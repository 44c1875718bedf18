"""The shared library: where it is, what this processor can run of it, and its entry points by name.

A level is a set of instructions; each kernel is there once a level. The best that the processor has is used, and a
lower one can be asked for.
"""

from __future__ import annotations

import ctypes
import hashlib
from functools import cache
from pathlib import Path

import torch

import corefw_cpu_kernels

__all__ = ["LEVELS", "best_level", "build", "entry_point", "level", "library", "unavailable", "use_level"]

LEVELS = ("avx2", "avx512", "avx512_vnni_bf16", "amx")
_FILE = "libcorefw_cpu_kernels.so"
_RUNTIMES = ("libgomp", "libiomp", "libomp")  # each has GOMP_parallel

_level: str | None = None


def unavailable() -> str | None:
    """Why there are no kernels in this process; None when there are."""
    if _path() is None:
        return "its library isn't there: the pack was installed without a C++ compiler, or not on x86-64"
    try:
        library()
    except OSError as error:
        return f"its library can't be loaded: {error}"
    return None if best_level() else "the processor lacks AVX2"


@cache
def library() -> ctypes.CDLL:
    """The library, loaded, with the threads that torch computes with.

    Raises:
        OSError: it isn't there, or can't be loaded.
    """
    path = _path()
    if path is None:
        raise OSError(f"{_FILE} is missing")
    loaded = ctypes.CDLL(str(path))
    _hand_threads_over(loaded)
    return loaded


@cache
def best_level() -> str | None:
    """The highest level that this processor has; None: none."""
    number: int = library().ck_cpu_level()
    return LEVELS[number - 1] if number else None


def level() -> str:
    """The level in use.

    Raises:
        OSError: the processor has none.
    """
    chosen = _level or best_level()
    if chosen is None:
        raise OSError("the processor lacks AVX2")
    return chosen


@cache
def build() -> str:
    """Tells one build of the library from another.

    Raises:
        OSError: it isn't there.
    """
    path = _path()
    if path is None:
        raise OSError(f"{_FILE} is missing")
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def use_level(name: str | None) -> None:
    """Use a level up to the processor's best; None: the best. Holds for calls that are made from now on.

    Raises:
        ValueError: there is no such level, or the processor lacks it.
    """
    global _level
    best = best_level()
    usable = LEVELS[: LEVELS.index(best) + 1] if best else ()
    if name is not None and name not in usable:
        raise ValueError(f"level {name!r} can't be used here; this processor has {', '.join(usable) or 'none'}")
    _level = name
    entry_point.cache_clear()


@cache
def entry_point(name: str) -> int:
    """Address of a kernel for the level in use.

    Raises:
        OSError: the library has no such kernel.
    """
    address = _address(library(), f"ck_{name}__{level()}")
    if address is None:
        raise OSError(f"{_FILE} has no kernel {name!r} at level {level()}")
    return address


def _address(owner: ctypes.CDLL, symbol: str) -> int | None:
    try:
        return ctypes.cast(getattr(owner, symbol), ctypes.c_void_p).value
    except AttributeError:
        return None


def _path() -> Path | None:
    folders = corefw_cpu_kernels.__path__  # an editable installation has two
    return next((Path(folder) / _FILE for folder in folders if (Path(folder) / _FILE).is_file()), None)


def _hand_threads_over(loaded: ctypes.CDLL) -> None:
    runtime = _openmp_runtime()
    addresses = [
        None if runtime is None else _address(ctypes.CDLL(runtime), symbol)
        for symbol in ("GOMP_parallel", "omp_get_thread_num")
    ]
    values = (ctypes.c_int64 * 3)(*(address or 0 for address in addresses), torch.get_num_threads())
    loaded.ck_set_threads(values)


def _openmp_runtime() -> str | None:
    """Path of the OpenMP runtime that torch brought into the process."""
    with Path("/proc/self/maps").open(encoding="utf-8") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    return next((path for path in sorted(paths) if Path(path).name.startswith(_RUNTIMES)), None)
