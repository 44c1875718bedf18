"""The whole OpenAPI document of a server: the fragments of its endpoints, and what holds for every route."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.requests import Request

import corefw
from corefw.errors import PluginError
from corefw.interfaces.endpoint import Endpoint
from corefw.server.mounting import is_builtin, prefix_of
from corefw.server.openapi import answer_schemas, error_answer
from corefw.server.protocol.answers import ErrorBody

__all__ = ["ApiDocument", "document_of"]

_DESCRIPTION = (
    "The HTTP API of a corefw server. A field that is unknown, of the wrong type or out of range is refused, never "
    "ignored; `null` says what leaving a field out says. Every failure has the same body, `ErrorBody`. A request may "
    "have an `X-Request-Id`; every answer of a route has one, and the server's log knows the request under it."
)
_KEY_SCHEME = "api_key"
_KEY_REFUSAL = ("Unauthorized", 401, "No valid API key.")
# Name and status of what every route may answer; most of it comes before the route is reached.
_EVERYWHERE = (
    ("BadRequest", 400, "The request is not valid HTTP, or its Content-Length is no number."),
    ("MethodNotAllowed", 405, "Any method that isn't described here; `Allow` names those that are."),
    ("RequestTimeout", 408, "The request came too slowly; the connection is closed."),
    ("BodyTooLarge", 413, "The body is larger than the server's --max-body-bytes."),
    ("HeadTooLarge", 431, "The request line and headers are too large; the connection is closed."),
    ("InternalError", 500, "The server's fault; its log has the details."),
    ("Unavailable", 503, "The engine has died, the server is shutting down, or it has no room for the body."),
)
_HEADERS = {
    401: {"WWW-Authenticate": "Always `Bearer`."},
    405: {"Allow": "The methods of this path."},
}


class ApiDocument:
    """Made once, when the app is.

    Args:
        endpoints: those that are served.
        has_key: whether clients need a key.
        overriding: names of plugins whose routes stand before the core's.

    Raises:
        PluginError: two endpoints describe one operation, or give one schema's name two meanings.
    """

    def __init__(self, endpoints: Sequence[Endpoint], *, has_key: bool, overriding: Sequence[str] = ()) -> None:
        self._paths: dict[str, dict[str, Any]] = {}
        self._schemas: dict[str, Any] = answer_schemas(ErrorBody)
        self._schema_owners = dict.fromkeys(self._schemas, "the server")
        self._owners: dict[tuple[str, str], str] = {}
        self._has_key = has_key
        for endpoint in sorted(endpoints, key=lambda each: is_builtin(each) or each.name not in overriding):
            self._add(endpoint, overriding)

    def under(self, root_path: str) -> dict[str, Any]:
        """The document as clients see it that reach the server under ``root_path``."""
        components: dict[str, Any] = {"schemas": self._schemas, "responses": dict(_common_responses(self._has_key))}
        if self._has_key:
            components["securitySchemes"] = {_KEY_SCHEME: {"type": "http", "scheme": "bearer"}}
        return {
            "openapi": "3.1.0",
            "info": {"title": "corefw", "version": corefw.__version__, "description": _DESCRIPTION},
            "servers": [{"url": root_path or "/"}],
            "paths": self._paths,
            "components": components,
        }

    def _add(self, endpoint: Endpoint, overriding: Sequence[str]) -> None:
        described = copy.deepcopy(dict(endpoint.openapi()))
        for name, schema in described.get("components", {}).get("schemas", {}).items():
            owner = self._schema_owners.setdefault(name, endpoint.name)
            if self._schemas.setdefault(name, schema) != schema:
                raise PluginError(f"endpoints {owner!r} and {endpoint.name!r} describe different schemas as {name!r}")
        prefix = prefix_of(endpoint)
        for path, operations in ((prefix + path, each) for path, each in described.get("paths", {}).items()):
            known = self._paths.setdefault(path, {})
            for method, operation in operations.items():
                if method in known and is_builtin(endpoint) and self._owners[path, method] in overriding:
                    continue
                if method in known:
                    raise PluginError(f"endpoint {endpoint.name!r} describes {method.upper()} {path} a second time")
                self._owners[path, method] = endpoint.name
                known[method] = self._complete(operation, endpoint, is_open=path in endpoint.public_paths)

    def _complete(self, operation: Mapping[str, Any], endpoint: Endpoint, *, is_open: bool) -> dict[str, Any]:
        needs_key = self._has_key and not is_open
        common = {status: {"$ref": f"#/components/responses/{name}"} for name, status, _ in _common(needs_key)}
        responses = {str(status): response for status, response in common.items()} | operation.get("responses", {})
        security: dict[str, Any] = {"security": [{_KEY_SCHEME: []}] if needs_key else []} if self._has_key else {}
        return {"tags": [endpoint.name], **operation, **security, "responses": dict(sorted(responses.items()))}


def document_of(request: Request) -> dict[str, Any]:
    """The document of the server behind a request, under the root path that the request came by."""
    document: ApiDocument = request.app.state.openapi
    return document.under(request.scope.get("root_path", ""))


def _common(has_key: bool) -> tuple[tuple[str, int, str], ...]:
    return (_KEY_REFUSAL, *_EVERYWHERE) if has_key else _EVERYWHERE


def _common_responses(has_key: bool) -> Iterable[tuple[str, dict[str, Any]]]:
    for name, status, description in _common(has_key):
        yield name, error_answer(description, _HEADERS.get(status))
