"""The connection to a Ray cluster that already runs."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Iterator

import ray

from corefw.errors import ConfigError

__all__ = ["connect"]


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
    with _own_signals():
        try:
            ray.init(address="auto", logging_level=logging.WARNING, configure_logging=False)
        except ConnectionError as error:
            raise ConfigError(
                "no Ray cluster runs here: start one with `ray start --head`, more nodes with "
                f"`ray start --address HOST:PORT`, or set RAY_ADDRESS ({str(error).partition(chr(10))[0][:200]})"
            ) from None
    return True


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray sets a handler for SIGTERM; the engine core's parent decides what that means."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # not the main thread, where Ray sets none either
            signal.signal(signal.SIGTERM, before)
