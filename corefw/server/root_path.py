"""Serving behind a proxy that shows this server under a prefix, whether it strips the prefix or not."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["RootPath", "route_path"]


class RootPath:
    """Completes paths that a proxy has stripped, so that all that follows sees the same: prefix and route."""

    def __init__(self, app: ASGIApp, *, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "path" in scope:
            path: str = scope["path"]
            is_whole = path == self._root_path or path.startswith(f"{self._root_path}/")
            scope = {**scope, "root_path": self._root_path, "path": path if is_whole else self._root_path + path}
        await self._app(scope, receive, send)


def route_path(scope: Scope) -> str:
    """The path that the router routes on."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
