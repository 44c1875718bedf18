"""The ASGI application: the routes of all endpoints behind one authentication and one set of limits."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route, WebSocketRoute

from corefw.errors import ConfigError, CorefwError, PluginError
from corefw.interfaces.endpoint import Endpoint
from corefw.observability.logging import get_logger
from corefw.server.access_log import AccessLog
from corefw.server.api_keys import accepted_keys
from corefw.server.auth import Authentication
from corefw.server.cors import cors_middleware
from corefw.server.errors import ErrorBarrier, handle_error
from corefw.server.http_metrics import HttpMetrics
from corefw.server.limits import BodyLimit
from corefw.server.observation import observing
from corefw.server.openapi_document import ApiDocument
from corefw.server.request_id import RequestIds
from corefw.server.root_path import RootPath
from corefw.server.state import TASKS, ServerState

__all__ = ["check_endpoints", "create_app"]

logger = get_logger(__name__)

_BUILTINS = "corefw.builtins."


def create_app(state: ServerState, endpoints: Sequence[Endpoint]) -> Starlette:
    """Build the app; ``app.state.corefw`` is ``state``.

    Endpoints whose task the model can't do are left out, with a line in the log.

    Raises:
        PluginError: two endpoints want one route, or one outside the built-ins has public paths.
        ConfigError: the environment's API key can't be sent, or the root path hides a route.
    """
    active = _served(endpoints, state.tasks)
    for endpoint in endpoints:
        if endpoint not in active:
            needed = ", ".join(sorted(endpoint.required_tasks))
            logger.info("endpoint %s is not served: the model does none of its tasks (%s)", endpoint.name, needed)
    keys = accepted_keys(state.server_config)
    routes = _collect_routes(active)
    _check_root_path(state.server_config.root_path, routes)
    app = Starlette(
        routes=routes,
        middleware=_middleware(state, keys, _public_paths(active)),
        exception_handlers={CorefwError: handle_error, HTTPException: handle_error},
        lifespan=_lifespan(state, active),
    )
    # A redirect would take its host from the client; a path is served as it is written or not at all.
    app.router.redirect_slashes = False
    app.state.corefw = state
    app.state.openapi = ApiDocument(active, has_key=bool(keys))
    return app


def check_endpoints(endpoints: Sequence[Endpoint], root_path: str) -> None:
    """What ``create_app`` would refuse, before there is a model.

    Endpoints are asked for their routes once, so these are others than those that are served.

    Raises:
        PluginError, ConfigError: see ``create_app``.
    """
    active = _served(endpoints, TASKS)
    _public_paths(active)
    _check_root_path(root_path, _collect_routes(active))


def _served(endpoints: Sequence[Endpoint], tasks: frozenset[str]) -> list[Endpoint]:
    return [endpoint for endpoint in endpoints if not endpoint.required_tasks or endpoint.required_tasks & tasks]


def _collect_routes(endpoints: Sequence[Endpoint]) -> list[BaseRoute]:
    routes: list[BaseRoute] = []
    owners: dict[tuple[str, str], str] = {}
    for endpoint in endpoints:
        for route in endpoint.routes():
            for claim in _claims(route):
                owner = owners.setdefault(claim, endpoint.name)
                if owner != endpoint.name:
                    raise PluginError(
                        f"endpoints {owner!r} and {endpoint.name!r} both want {' '.join(claim)}; "
                        "leave one out with --plugins"
                    )
            routes.append(route)
    return routes


def _claims(route: BaseRoute) -> list[tuple[str, str]]:
    """What a route takes for itself: method and path."""
    path = getattr(route, "path", repr(route))
    if isinstance(route, Route):
        return [(method, path) for method in sorted(route.methods or ("ANY",))]
    return [("WEBSOCKET" if isinstance(route, WebSocketRoute) else "MOUNT", path)]


def _middleware(state: ServerState, keys: Sequence[str], public_paths: frozenset[str]) -> list[Middleware]:
    """Outermost first: whatever is answered further in has an id, a line in the log and headers for other origins."""
    config = state.server_config
    return [
        Middleware(RequestIds),
        *([Middleware(AccessLog)] if config.access_log else []),
        *cors_middleware(config),
        Middleware(ErrorBarrier),
        *([Middleware(RootPath, root_path=config.root_path)] if config.root_path else []),
        Middleware(HttpMetrics, metrics=state.metrics),
        Middleware(Authentication, keys=keys, public_paths=public_paths),
        Middleware(BodyLimit, max_body_bytes=config.max_body_bytes, max_total_bytes=config.total_body_bytes),
    ]


def _check_root_path(root_path: str, routes: Sequence[BaseRoute]) -> None:
    """A path with the prefix counts as one that the proxy didn't strip, so no route may begin like that."""
    for route in routes:
        if root_path and f"{getattr(route, 'path', '')}/".startswith(f"{root_path}/"):
            raise ConfigError(
                f"--root-path {root_path} is the beginning of a route of this server; take another prefix"
            )


def _public_paths(endpoints: Sequence[Endpoint]) -> frozenset[str]:
    public: frozenset[str] = frozenset()
    for endpoint in endpoints:
        if endpoint.public_paths and not type(endpoint).__module__.startswith(_BUILTINS):
            raise PluginError(f"endpoint {endpoint.name!r} declares public paths; only built-in endpoints may have any")
        public |= endpoint.public_paths
    return public


def _lifespan(
    state: ServerState, endpoints: Sequence[Endpoint]
) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None, None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(observing(state))
            for endpoint in endpoints:
                await endpoint.startup(state)
                stack.push_async_callback(endpoint.shutdown)
            yield

    return lifespan
