"""``/dev/shm``: corefw itself doesn't use it, but NCCL and Ray do, and containers make it small."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["shared_memory_problem"]

_MIB = 2**20
_SHM = Path("/dev/shm")


def shared_memory_problem(user: str, needed_bytes: int, folder: Path = _SHM) -> str | None:
    """Why a library that keeps shared memory in files will fail here, and what to do; None where there is room.

    Args:
        user: who needs it, for the message.
        needed_bytes: how much.
        folder: where it makes its files.
    """
    size = f"{-(-needed_bytes // _MIB)}m"
    remedy = (
        f"start the container with a larger one (docker run --shm-size={size}, or --ipc=host; in Kubernetes an "
        f"emptyDir with medium Memory at {folder}), or: mount -o remount,size={size} {folder}"
    )
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return f"{user} keeps shared memory in {folder}, which can't be used ({error.strerror}); {remedy}"
    free_bytes = found.f_bavail * found.f_frsize
    if free_bytes >= needed_bytes:
        return None
    return (
        f"{user} needs {-(-needed_bytes // _MIB)} MiB in {folder}, where {free_bytes // _MIB} MiB of "
        f"{found.f_blocks * found.f_frsize // _MIB} MiB are free; {remedy}"
    )
