"""Authentication: with a key configured nothing is open but the paths that say so."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from corefw.errors import RequestError
from corefw.server.errors import error_response
from corefw.server.request_id import request_id_of
from corefw.server.root_path import route_path

__all__ = ["Authentication"]


class Authentication:
    """Deny by default.

    A public path is compared with exactly the path that the router routes on, so no spelling of another path
    (``//v1``, ``/V1``, a trailing slash, an encoded one) can pass for one; it is open for the methods that its owner
    takes, so that nobody else's route on it is.

    Args:
        app: what is protected.
        keys: accepted keys; with none at all the server is open.
        public: method and path of what needs no key.
    """

    def __init__(self, app: ASGIApp, *, keys: Iterable[str], public: frozenset[tuple[str, str]]) -> None:
        self._app = app
        self._digests = tuple(_digest(key.encode()) for key in keys)
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not self._digests or self._is_open(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _refusal(scope)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": "no valid API key"})

    def _is_open(self, scope: Scope) -> bool:
        if scope["type"] == "http" and (scope["method"], route_path(scope)) in self._public:
            return True
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, key = given[0].partition(b" ")
        return scheme.lower() == b"bearer" and self._matches(key.strip())

    def _matches(self, key: bytes) -> bool:
        # Digests have one length, and every key is compared: neither length nor position of a key shows in time.
        digest = _digest(key)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _refusal(scope: Scope) -> ASGIApp:
    error = RequestError(
        "no valid API key; send one as 'Authorization: Bearer KEY'", code="invalid_api_key", status=401
    )
    response = error_response(error, request_id_of(scope))
    response.headers["www-authenticate"] = "Bearer"
    return response
