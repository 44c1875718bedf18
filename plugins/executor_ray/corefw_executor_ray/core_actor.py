"""The parent of an engine core on another node, as a Ray actor: what a front end does for its child, it does there."""

from __future__ import annotations

import os
import select
from collections.abc import Mapping

import ray

from corefw.sdk.core_launchers import BoardReader, CoreChild
from corefw.sdk.devices import child_environment
from corefw_executor_ray.cluster import own_address
from corefw_executor_ray.environment import enter

__all__ = ["CoreActor", "CoreNews"]

_LOOK_MS = 200
_CHUNK_BYTES = 2**20

# What the core said on its control socket, a snapshot of its board, and how it ended; None while it runs.
CoreNews = tuple[bytes, bytes, str | None]


class CoreActor:
    """The core lives no longer than the actor: it is its child.

    Args:
        environment: what the front end passes on.
        place: the engine's among those on this node.
        num_places: how many there are.
    """

    def __init__(self, environment: Mapping[str, str | None], place: int, num_places: int) -> None:
        enter(environment)
        # Ranks of the core's own may be actors, too; a core is no part of its actor, as far as Ray is concerned.
        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
        self._board = BoardReader()
        # On the actor's main thread, so that the kernel ties the child's life to this process's.
        self._core = CoreChild.spawn(self._board.fd, environment=child_environment(place, num_places))

    def describe(self) -> tuple[str, int, int]:
        """Its host, as other nodes reach it; process ids of the core and of the actor."""
        return own_address(), self._core.pid, os.getpid()

    def tell(self, data: bytes) -> None:
        """Hand on what the front end says to the core."""
        self._core.control.sendall(data)

    def news(self) -> CoreNews:
        """What there is; waits a moment for something new."""
        poll = select.poll()
        for descriptor in (self._core.control.fileno(), self._core.exit_fd):
            poll.register(descriptor, select.POLLIN)
        poll.poll(_LOOK_MS)
        ended = self._core.exit_text()  # before the rest is read: it is complete then
        return self._said(), self._board.snapshot(), ended

    def _said(self) -> bytes:
        said = b""
        poll = select.poll()
        poll.register(self._core.control, select.POLLIN)
        while poll.poll(0):
            try:
                part = self._core.control.recv(_CHUNK_BYTES)
            except ConnectionError:
                break
            if not part:
                break
            said += part
        return said
