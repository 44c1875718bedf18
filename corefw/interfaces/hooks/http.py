"""Hooks of the HTTP server: layers around its routes, and servers of other protocols beside it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from corefw.interfaces.hooks.marker import hookspec

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from corefw.interfaces.engine_client import EngineClient
    from corefw.interfaces.server_state import ServerState

__all__ = [
    "HttpMiddleware",
    "ProtocolServer",
    "RouteWrapper",
    "corefw_middleware",
    "corefw_protocol_server",
    "corefw_route_wrapper",
]


class HttpMiddleware(ABC):
    """A layer around all routes."""

    @abstractmethod
    def wrap(self, app: ASGIApp) -> ASGIApp:
        """An ASGI app that calls ``app``; called once. It gets HTTP requests only.

        It stands inside request ids, access log, the barrier for errors, figures, the key and the limit of bodies: it
        sees no request without a valid key but those of public paths. What it raises is answered like a handler's
        error: ``corefw.errors`` with their own answers, anything else as a 500 without details.
        """


class RouteWrapper(ABC):
    """A layer around single routes of the core.

    Attributes:
        routes: method and path as the core declares it: ``POST /v1/chat/completions``.
    """

    routes: ClassVar[tuple[str, ...]]

    @abstractmethod
    def wrap(self, app: ASGIApp) -> ASGIApp:
        """An ASGI app that calls ``app``, the route as it was; called once a route. See ``HttpMiddleware.wrap``."""


class ProtocolServer(ABC):
    """Serves the same engine by another protocol, on the server's event loop."""

    @abstractmethod
    async def start(self, client: EngineClient) -> None:
        """Begin to listen, and return. Called once, when the engine is ready; what it raises stops the start."""

    @abstractmethod
    async def stop(self) -> None:
        """Take no more requests, let the running ones end, and return.

        Called once, when the server begins to drain. After ``--shutdown-timeout`` seconds the client's streams end with
        ``EngineDeadError``; two seconds later this is cancelled.
        """


@hookspec
def corefw_middleware(state: ServerState) -> HttpMiddleware | None:
    """Put a layer around all HTTP routes; the first plugin's is the outermost.

    Called once, when the server is put together (process ``front_end``).

    Args:
        state: the server.

    Returns:
        the layer.
    """


@hookspec
def corefw_route_wrapper(state: ServerState) -> RouteWrapper | None:
    """Put a layer around single routes of the core, where ``--allow-route-override`` names the plugin.

    Called once, when the server is put together (process ``front_end``). Without that permission the layer is left out,
    and the log and ``GET /plugins`` say so. The first plugin's layer is the outermost.

    Args:
        state: the server.

    Returns:
        the layer.
    """


@hookspec
def corefw_protocol_server(state: ServerState) -> ProtocolServer | None:
    """Serve the engine by another protocol beside HTTP, where the operator named the plugin in ``--plugins``.

    Called once, when the server is put together (process ``front_end``). It is a door of its own: the server's key and
    limits on bodies don't hold there, the admission of sequences does. A plugin that was loaded by default, unnamed,
    isn't started; the log and ``GET /plugins`` say so.

    Args:
        state: the HTTP server.

    Returns:
        the server.
    """
