"""What general plugins put around the routes and beside them."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from corefw.errors import PluginError
from corefw.interfaces.hooks.http import (
    HttpMiddleware,
    ProtocolServer,
    RouteWrapper,
    corefw_middleware,
    corefw_protocol_server,
    corefw_route_wrapper,
)
from corefw.interfaces.selection import Rejected, Selection
from corefw.plugin_system.blame import told
from corefw.plugin_system.contributions import Contribution
from corefw.plugin_system.names import suggestion

if TYPE_CHECKING:
    from corefw.plugin_system.manager import PluginManager
    from corefw.server.state import ServerState

__all__ = ["PluginLayers", "is_named"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginLayers:
    """Contributions in the plugins' order, the permitted ones.

    Attributes:
        middleware: around all routes.
        wrappers: around single ones.
        protocol_servers: beside them.
        wrapper_names: of all plugins that have a wrapper, permitted or not.
    """

    middleware: tuple[Contribution[HttpMiddleware], ...] = ()
    wrappers: tuple[Contribution[RouteWrapper], ...] = ()
    protocol_servers: tuple[Contribution[ProtocolServer], ...] = ()
    wrapper_names: tuple[str, ...] = ()

    @classmethod
    def collect(cls, state: ServerState) -> PluginLayers:
        """Ask the plugins once; what isn't permitted is left out, and recorded.

        Raises:
            PluginError: see ``PluginManager.collect``.
        """
        plugins = state.plugins
        if plugins is None:
            return cls()
        wrappers = plugins.collect(RouteWrapper, corefw_route_wrapper, state)
        servers = plugins.collect(ProtocolServer, corefw_protocol_server, state)
        found = cls(
            middleware=plugins.collect(HttpMiddleware, corefw_middleware, state),
            wrapper_names=tuple(each.plugin for each in wrappers),
        )
        allowed = state.server_config.allow_route_override
        return replace(
            found,
            wrappers=tuple(
                each
                for each in wrappers
                if _permitted(
                    plugins, each, "route wrapper", each.plugin in allowed, f"--allow-route-override {each.plugin}"
                )
            ),
            protocol_servers=tuple(
                each
                for each in servers
                if _permitted(
                    plugins,
                    each,
                    "protocol server",
                    is_named(plugins, "general_plugins", each.owner),
                    f"--plugins +{each.plugin}",
                )
            ),
        )

    def as_middleware(self) -> list[Middleware]:
        """For the app, outermost first."""
        return [Middleware(_Layer, contribution=each) for each in self.middleware]

    def wrap(self, routes: Sequence[BaseRoute], core_routes: Iterable[BaseRoute]) -> list[BaseRoute]:
        """The routes, those of the core with the wrappers around them that name them.

        Raises:
            PluginError: a wrapper names a route that the core doesn't have, or can't be made.
        """
        mine = [route for route in core_routes if isinstance(route, Route)]
        wrapped = dict(enumerate(routes))
        for each in reversed(self.wrappers):
            for named in each.value.routes:
                original = _route_named(named, mine, each)
                position = routes.index(original)
                wrapped[position] = _wrapped(wrapped[position], named.split()[0], each)
        return list(wrapped.values())


def is_named(plugins: PluginManager, group: str, owner: str) -> bool:
    """Whether the allowlist names the plugin ``distribution/name``."""
    return any(
        one.named and one.group == group and f"{one.distribution}/{one.name}" == owner for one in plugins.resolved()
    )


def _permitted(plugins: PluginManager, one: Contribution[Any], what: str, permitted: bool, setting: str) -> bool:
    if permitted:
        plugins.record(Selection(f"{what} {one.plugin}", one.plugin, f"permitted by {setting}"))
        return True
    reason = f"not permitted; {setting} does"
    logger.warning("the %s of plugin %s isn't used: %s", what, one.owner, reason)
    plugins.record(Selection(f"{what} {one.plugin}", "none", reason, (Rejected(one.plugin, reason),)))
    return False


def _made(contribution: Contribution[HttpMiddleware] | Contribution[RouteWrapper], app: ASGIApp) -> ASGIApp:
    try:
        made = contribution.value.wrap(app)
    except Exception as error:
        raise PluginError(f"plugin {contribution.owner} can't wrap the server's routes: {told(error)}") from error
    if not callable(made):
        raise PluginError(f"plugin {contribution.owner} wraps the server's routes in what isn't an ASGI app")
    return made


class _Layer:
    """A plugin's middleware, around HTTP requests only."""

    def __init__(self, app: ASGIApp, *, contribution: Contribution[HttpMiddleware]) -> None:
        self._app = app
        self._wrapped = _made(contribution, app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._wrapped if scope["type"] == "http" else self._app)(scope, receive, send)


def _route_named(named: str, routes: Sequence[Route], wrapper: Contribution[RouteWrapper]) -> Route:
    known = {f"{method} {route.path}": route for route in routes for method in sorted(route.methods or ())}
    if named not in known:
        raise PluginError(
            f"plugin {wrapper.owner} wraps {named[:80]!r}, which is no route of the core; {suggestion(named, known)}"
        )
    return known[named]


def _wrapped(route: BaseRoute, method: str, wrapper: Contribution[RouteWrapper]) -> BaseRoute:
    assert isinstance(route, Route), "_route_named gives no others"
    original = route.app
    layer = _made(wrapper, original)

    async def choose(scope: Scope, receive: Receive, send: Send) -> None:
        await (layer if scope["method"] == method else original)(scope, receive, send)

    changed = copy.copy(route)
    changed.app = choose
    return changed
