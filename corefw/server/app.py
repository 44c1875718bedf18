"""The ASGI application: the routes of all endpoints behind one authentication and one set of limits."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route

from corefw.config.engine_config import ServerConfig
from corefw.errors import ConfigError, CorefwError, PluginError
from corefw.interfaces.endpoint import Endpoint
from corefw.interfaces.selection import Rejected, Selection
from corefw.observability.logging import get_logger
from corefw.server.access_log import AccessLog
from corefw.server.api_keys import accepted_keys
from corefw.server.auth import Authentication
from corefw.server.cors import cors_middleware
from corefw.server.endpoint_life import EndpointLife
from corefw.server.errors import ErrorBarrier, handle_error
from corefw.server.http_metrics import HttpMetrics
from corefw.server.limits import BodyLimit
from corefw.server.mounting import Mounted, arrange, is_builtin, mount
from corefw.server.observation import observing
from corefw.server.openapi_document import ApiDocument
from corefw.server.plugin_layers import PluginLayers
from corefw.server.protocol_servers import ProtocolServers
from corefw.server.request_id import RequestIds
from corefw.server.root_path import RootPath
from corefw.server.state import TASKS, ServerState

__all__ = ["check_endpoints", "create_app"]

logger = get_logger(__name__)

# What a server of another protocol gets on top of the drain for its last words, as HTTP's clients do.
_LAST_WORDS_S = 2.0


def create_app(state: ServerState, endpoints: Sequence[Endpoint], layers: PluginLayers | None = None) -> Starlette:
    """Build the app; ``app.state.corefw`` is ``state``.

    Endpoints whose task the model can't do are left out, which is logged and recorded.

    Args:
        state: of the server.
        endpoints: built-ins and others.
        layers: what plugins put around the routes and beside them; None asks them.

    Raises:
        PluginError: two endpoints want one route, one outside the built-ins has public paths, or a layer fails.
        ConfigError: the environment's API key can't be sent, the root path hides a route, or a name that may override
            routes isn't there.
    """
    layers = PluginLayers.collect(state) if layers is None else layers
    active = [endpoint for endpoint in endpoints if _is_served(endpoint, state)]
    keys = accepted_keys(state.server_config)
    mounted = [mount(endpoint) for endpoint in active]
    routes = _routes(state, mounted, endpoints, layers)
    _check_root_path(state.server_config.root_path, routes)
    protocol_servers = ProtocolServers(layers.protocol_servers, state.client)
    app = Starlette(
        routes=routes,
        middleware=_middleware(state, keys, _public(mounted), layers),
        exception_handlers={CorefwError: handle_error, HTTPException: handle_error},
        lifespan=_lifespan(state, active, protocol_servers),
    )
    app.middleware_stack = app.build_middleware_stack()  # a plugin's layer that can't be made stops the start
    # A redirect would take its host from the client; a path is served as it is written or not at all.
    app.router.redirect_slashes = False
    app.state.corefw = state
    app.state.protocol_servers = protocol_servers
    app.state.start_error = None
    app.state.openapi = ApiDocument(active, has_key=bool(keys), overriding=state.server_config.allow_route_override)
    return app


def check_endpoints(endpoints: Sequence[Endpoint], config: ServerConfig) -> None:
    """What ``create_app`` would refuse, before there is a model.

    Endpoints are asked for their routes once, so these are others than those that are served.

    Raises:
        PluginError, ConfigError: see ``create_app``.
    """
    active = [endpoint for endpoint in endpoints if _has_task(endpoint, TASKS)]
    mounted = [mount(endpoint) for endpoint in active]
    _public(mounted)
    overriding = config.allow_route_override  # whether all of them are there is known with the other layers
    _check_root_path(config.root_path, arrange(mounted, overriding, overriding))


def _has_task(endpoint: Endpoint, tasks: frozenset[str]) -> bool:
    return not endpoint.required_tasks or bool(endpoint.required_tasks & tasks)


def _is_served(endpoint: Endpoint, state: ServerState) -> bool:
    if _has_task(endpoint, state.tasks):
        return True
    reason = f"the model does none of its tasks ({', '.join(sorted(endpoint.required_tasks))})"
    logger.info("endpoint %s is not served: %s", endpoint.name, reason)
    if state.plugins is not None:
        state.plugins.record(Selection(f"endpoint {endpoint.name}", "none", reason, (Rejected(endpoint.name, reason),)))
    return False


def _routes(
    state: ServerState, mounted: Sequence[Mounted], endpoints: Sequence[Endpoint], layers: PluginLayers
) -> list[BaseRoute]:
    unserved = [each.name for each in endpoints if each not in [served.endpoint for served in mounted]]
    routes = arrange(mounted, state.server_config.allow_route_override, [*layers.wrapper_names, *unserved])
    return layers.wrap(routes, [route for each in mounted if is_builtin(each.endpoint) for route in each.routes])


def _middleware(
    state: ServerState, keys: Sequence[str], public: frozenset[tuple[str, str]], layers: PluginLayers
) -> list[Middleware]:
    """Outermost first: whatever is answered further in has an id, a line in the log and headers for other origins."""
    config = state.server_config
    return [
        Middleware(RequestIds),
        *([Middleware(AccessLog)] if config.access_log else []),
        *cors_middleware(config),
        Middleware(ErrorBarrier),
        *([Middleware(RootPath, root_path=config.root_path)] if config.root_path else []),
        Middleware(HttpMetrics, metrics=state.metrics),
        Middleware(Authentication, keys=keys, public=public),
        Middleware(BodyLimit, max_body_bytes=config.max_body_bytes, max_total_bytes=config.total_body_bytes),
        *layers.as_middleware(),
    ]


def _check_root_path(root_path: str, routes: Sequence[BaseRoute]) -> None:
    """A path with the prefix counts as one that the proxy didn't strip, so no route may begin like that."""
    for route in routes:
        if root_path and f"{getattr(route, 'path', '')}/".startswith(f"{root_path}/"):
            raise ConfigError(
                f"--root-path {root_path} is the beginning of a route of this server; take another prefix"
            )


def _public(mounted: Sequence[Mounted]) -> frozenset[tuple[str, str]]:
    """Method and path of what needs no key: what built-ins serve on their public paths, and nothing else there."""
    public: set[tuple[str, str]] = set()
    for each in mounted:
        endpoint = each.endpoint
        if endpoint.public_paths and not is_builtin(endpoint):
            raise PluginError(f"endpoint {endpoint.name!r} declares public paths; only built-in endpoints may have any")
        for route in each.routes:
            if isinstance(route, Route) and route.path in endpoint.public_paths:
                public |= {(method, route.path) for method in route.methods or ()}
    return frozenset(public)


def _lifespan(
    state: ServerState, endpoints: Sequence[Endpoint], protocol_servers: ProtocolServers
) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(observing(state))
            try:
                life = EndpointLife(endpoints, state)
                stack.push_async_callback(life.stop)
                await life.start()
                stack.push_async_callback(protocol_servers.stop, state.server_config.shutdown_timeout + _LAST_WORDS_S)
                await protocol_servers.start()
            except Exception as error:
                app.state.start_error = error  # ASGI would carry its text alone
                raise
            yield

    return lifespan
