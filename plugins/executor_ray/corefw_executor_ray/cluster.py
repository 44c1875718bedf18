"""The connection to a Ray cluster that already runs."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import ray

from corefw.errors import ConfigError

__all__ = ["connect", "own_address"]

_REACH_S = 10.0
_ray: Any = ray  # some of its functions have no types


def connect() -> bool:
    """Join the cluster that ``RAY_ADDRESS`` names, else the one that runs on this machine.

    None is started: what nobody started on purpose, nobody would stop.

    Returns:
        Whether the connection is new, and so the caller's to close.

    Raises:
        ConfigError: there is no cluster.
    """
    if ray.is_initialized():
        return False
    _check_reachable(os.environ.get("RAY_ADDRESS", ""))
    with _own_signals():
        try:
            ray.init(address="auto", logging_level=logging.WARNING, configure_logging=False)
        except ConnectionError as error:
            raise _no_cluster("runs here", error) from None
    return True


def own_address() -> str:
    """Of this machine, as the cluster's nodes reach it."""
    return str(_ray.util.get_node_ip_address())


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):  # unset, ``auto``, or for Ray to judge
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
    except OSError as error:
        raise _no_cluster(f"answers at RAY_ADDRESS={address[:100]}", error) from None


def _no_cluster(where: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"no Ray cluster {where}: start one with `ray start --head`, more nodes with `ray start --address HOST:PORT`, "
        f"or set RAY_ADDRESS to one that runs ({str(error).partition(chr(10))[0][:200]})"
    )


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray sets a handler for SIGTERM; the engine core's parent decides what that means."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # not the main thread, where Ray sets none either
            signal.signal(signal.SIGTERM, before)
