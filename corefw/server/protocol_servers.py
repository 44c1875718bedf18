"""Servers of other protocols that plugins run beside HTTP: started with the app, drained with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from corefw.errors import PluginError
from corefw.interfaces.engine_client import EngineClient
from corefw.interfaces.hooks.http import ProtocolServer
from corefw.plugin_system.blame import told
from corefw.plugin_system.contributions import Contribution
from corefw.server.time_limits import START_LIMIT_S, within

__all__ = ["ProtocolServers"]

_CANCELLED_S = 1.0

logger = logging.getLogger(__name__)


class ProtocolServers:
    """Used on the server's event loop.

    Args:
        servers: the permitted ones.
        client: what they generate with.
    """

    def __init__(self, servers: Sequence[Contribution[ProtocolServer]], client: EngineClient) -> None:
        self._servers = servers
        self._client = client
        self._started: list[Contribution[ProtocolServer]] = []
        self._stopping: dict[asyncio.Task[None], str] | None = None

    async def start(self, limit_s: float = START_LIMIT_S) -> None:
        """Start all, one after another.

        Raises:
            PluginError: one can't start, or takes too long.
        """
        for server in self._servers:
            try:
                await within(limit_s, lambda: server.value.start(self._client))  # noqa: B023 - awaited right here
            except Exception as error:
                raise PluginError(f"the protocol server of plugin {server.owner} can't start: {told(error)}") from error
            self._started.append(server)
            logger.info("the protocol server of plugin %s has started", server.owner)

    def begin_stop(self) -> None:
        """Let them drain. May be called again."""
        if self._stopping is None:
            self._stopping = {
                asyncio.create_task(_stop(server.value), name=f"stop {server.owner}"): server.owner
                for server in self._started
            }

    async def stop(self, limit_s: float) -> None:
        """Wait until they have drained; what takes longer is cancelled. Their failures are logged."""
        self.begin_stop()
        if not self._stopping:
            return
        _, late = await asyncio.wait(self._stopping, timeout=limit_s)
        for task in late:
            logger.warning("the protocol server of plugin %s didn't stop in %g s", self._stopping[task], limit_s)
            task.cancel()
        if late:  # one may go on all the same; the process ends then without it
            await asyncio.wait(late, timeout=_CANCELLED_S)
        for task, owner in self._stopping.items():
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                logger.error("the protocol server of plugin %s failed while it stopped", owner, exc_info=error)


async def _stop(server: ProtocolServer) -> None:
    # In a task from its first line on: what isn't a coroutine function, too, fails there alone.
    await server.stop()
