"""Endpoint: HTTP routes. The core's own OpenAI routes and every pack's come in the same way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from corefw.interfaces.server_state import ServerState

__all__ = ["Endpoint"]


class Endpoint(ABC):
    """A set of routes (group ``corefw.endpoint_plugins``), denied by default unless built in.

    A route that would take a method and path from one of the core's, be it by a parameter, stops the start unless
    ``--allow-route-override`` has the plugin's name; it stands before the core's then.

    Every route sits behind the server's authentication and limits. ``public_paths`` are the exception and only
    built-ins may have any.

    Attributes:
        name: the plugin's name.
        prefix: what stands before the paths of its routes and of its OpenAPI fragment: ``/mine``, or empty; None is
            ``/plugins/<name>``.
        required_tasks: tasks the model must have (any of them); empty means always.
        public_paths: paths that need no key.
    """

    name: ClassVar[str]
    api_version: ClassVar[int] = 1
    prefix: ClassVar[str | None] = None
    required_tasks: ClassVar[frozenset[str]] = frozenset()
    public_paths: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def routes(self) -> Sequence[BaseRoute]:
        """Starlette routes, asked for once, before ``startup``. A handler's state is ``request.app.state.corefw``."""

    def openapi(self) -> Mapping[str, Any]:
        """What the routes take and answer, as an OpenAPI 3.1 fragment: ``paths`` and ``components.schemas``.

        ``corefw.server.openapi.fragment`` makes one of the structs that the routes use. Asked for once, after
        ``routes``. What holds for every route (the key, its 401, 405, 413 …) is added by the server. A route that isn't
        in the fragment is served, but not documented.
        """
        return {}

    async def startup(self, state: ServerState) -> None:
        """Called once, when the engine is ready and before the first request; ``state.client`` generates.

        It has 30 s. What it raises stops the start.
        """
        del state

    async def shutdown(self) -> None:
        """Called once, after the last request. It has 5 s; what takes longer is cancelled."""
