"""Start-up and shutdown of endpoints: limited in time, and told by their names."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from corefw.errors import CorefwError, PluginError
from corefw.interfaces.endpoint import Endpoint
from corefw.plugin_system.blame import told
from corefw.plugin_system.starting import plugin_of_class
from corefw.server.mounting import is_builtin
from corefw.server.state import ServerState
from corefw.server.time_limits import START_LIMIT_S, STOP_LIMIT_S, within

__all__ = ["EndpointLife"]

logger = logging.getLogger(__name__)


class EndpointLife:
    """Used on the server's event loop.

    Args:
        endpoints: the served ones.
        state: what they get.
    """

    def __init__(self, endpoints: Sequence[Endpoint], state: ServerState) -> None:
        self._endpoints = endpoints
        self._state = state
        self._started: list[Endpoint] = []

    async def start(self, limit_s: float = START_LIMIT_S) -> None:
        """Start all, one after another.

        Raises:
            PluginError: one that isn't built in raised, or took too long.
        """
        for endpoint in self._endpoints:
            try:
                await within(limit_s, lambda: endpoint.startup(self._state))  # noqa: B023 - awaited right here
            except CorefwError:
                raise
            except Exception as error:
                if is_builtin(endpoint):
                    raise
                raise PluginError(f"{self._name(endpoint)} failed at its start: {told(error)}") from error
            self._started.append(endpoint)

    async def stop(self, limit_s: float = STOP_LIMIT_S) -> None:
        """Stop all that were started, at once. Their failures are logged; what takes longer is left behind."""
        await asyncio.gather(*(self._stop(endpoint, limit_s) for endpoint in self._started))

    async def _stop(self, endpoint: Endpoint, limit_s: float) -> None:
        try:
            await within(limit_s, endpoint.shutdown)
        except TimeoutError:
            logger.warning("%s didn't stop in %g s", self._name(endpoint), limit_s)
        except Exception as error:
            logger.error("%s failed while it stopped", self._name(endpoint), exc_info=error)

    def _name(self, endpoint: Endpoint) -> str:
        plugins = self._state.plugins
        plugin = None if plugins is None else plugin_of_class(plugins, type(endpoint))
        return plugin or f"endpoint {endpoint.name!r}"
