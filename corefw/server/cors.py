"""CORS: which pages of other origins may read answers. Off unless origins are named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

if TYPE_CHECKING:
    from corefw.config.engine_config import ServerConfig

__all__ = ["cors_middleware"]

# Beyond what every page may read: the id to report, and when to come again.
_EXPOSED_HEADERS = ("X-Request-Id", "Retry-After")


def cors_middleware(config: ServerConfig) -> list[Middleware]:
    """The middleware, or nothing.

    It answers preflights (OPTIONS with Origin and Access-Control-Request-Method) itself, before the key is asked for:
    browsers send none with them. Every other OPTIONS is a request like any.
    """
    if not config.allowed_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=config.allowed_methods,
            allow_headers=config.allowed_headers,
            allow_credentials=config.allow_credentials,
            expose_headers=_EXPOSED_HEADERS,
        )
    ]
