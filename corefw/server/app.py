"""The ASGI application: the routes of all endpoints behind one authentication and one set of limits."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route, WebSocketRoute

from corefw import env
from corefw.errors import ConfigError, CorefwError, PluginError
from corefw.interfaces.endpoint import Endpoint
from corefw.observability.logging import get_logger
from corefw.server.auth import Authentication
from corefw.server.errors import ErrorBarrier, handle_error
from corefw.server.limits import BodyLimit
from corefw.server.request_id import RequestIds
from corefw.server.state import ServerState

__all__ = ["create_app"]

logger = get_logger(__name__)

_BUILTINS = "corefw.builtins."


def create_app(state: ServerState, endpoints: Sequence[Endpoint]) -> Starlette:
    """Build the app; ``app.state.corefw`` is ``state``.

    Endpoints whose task the model can't do are left out, with a line in the log.

    Raises:
        PluginError: two endpoints want one route, or one outside the built-ins has public paths.
        ConfigError: an API key is empty.
    """
    active = [endpoint for endpoint in endpoints if _is_served(endpoint, state)]
    app = Starlette(
        routes=_collect_routes(active),
        middleware=[
            Middleware(RequestIds),
            Middleware(ErrorBarrier),
            Middleware(Authentication, keys=_keys(state), public_paths=_public_paths(active)),
            Middleware(BodyLimit, max_body_bytes=state.server_config.max_body_bytes),
        ],
        exception_handlers={CorefwError: handle_error, HTTPException: handle_error},
        lifespan=_lifespan(state, active),
    )
    # A redirect would take its host from the client; a path is served as it is written or not at all.
    app.router.redirect_slashes = False
    app.state.corefw = state
    return app


def _is_served(endpoint: Endpoint, state: ServerState) -> bool:
    if not endpoint.required_tasks or endpoint.required_tasks & state.tasks:
        return True
    needed = ", ".join(sorted(endpoint.required_tasks))
    logger.info("endpoint %s is not served: the model does none of its tasks (%s)", endpoint.name, needed)
    return False


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


def _keys(state: ServerState) -> tuple[str, ...]:
    from_environment = env.api_key()
    keys = (*state.server_config.api_key, *([from_environment] if from_environment else []))
    if any(not key.strip() for key in keys):
        raise ConfigError("--api-key must not be empty; leave it out to serve without a key")
    return keys


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
            for endpoint in endpoints:
                await endpoint.startup(state)
                stack.push_async_callback(endpoint.shutdown)
            yield

    return lifespan
