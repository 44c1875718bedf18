"""Requests that are being answered: each ends early when its client goes or when the server stops."""

from __future__ import annotations

import asyncio
from types import TracebackType

from starlette.requests import ClientDisconnect
from starlette.types import Receive

__all__ = ["InFlight", "RequestScope"]


class InFlight:
    """All requests inside a scope, so that they can be told to end."""

    def __init__(self) -> None:
        self._scopes: set[RequestScope] = set()

    def __len__(self) -> int:
        return len(self._scopes)

    def watch(self, receive: Receive) -> RequestScope:
        """A scope for the current task. The request's body must have been read."""
        return RequestScope(self._scopes, receive)

    def stop(self, error: Exception) -> None:
        """Raise ``error`` in every scope."""
        for scope in tuple(self._scopes):
            scope.interrupt(error)


class RequestScope:
    """Context manager that interrupts its body.

    Raises:
        ClientDisconnect: the client went while the body ran.
        Exception: what ``InFlight.stop`` was given.
    """

    def __init__(self, scopes: set[RequestScope], receive: Receive) -> None:
        self._scopes = scopes
        self._receive = receive
        self._reason: Exception | None = None

    async def __aenter__(self) -> RequestScope:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._watcher = asyncio.create_task(self._watch())
        self._scopes.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._scopes.discard(self)
        self._watcher.cancel()
        if self._reason is None:
            return
        # The same test as asyncio.timeout: a cancellation from elsewhere stays one.
        cancelled_by_us = self._task.uncancel() <= self._cancelling
        if cancelled_by_us and kind is asyncio.CancelledError:
            raise self._reason from None

    def interrupt(self, reason: Exception) -> None:
        """Make the body end with ``reason``; the first reason counts."""
        if self._reason is None:
            self._reason = reason
            self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.interrupt(ClientDisconnect())
