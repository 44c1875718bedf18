"""Requests that are being answered: each ends early when its client goes, its time is over, or the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from corefw.errors import RequestTimeoutError

__all__ = ["InFlight", "RequestScope"]


class _Scope(Protocol):
    def interrupt(self, reason: Exception) -> None: ...


class InFlight:
    """All requests inside a scope, so that they can be told to end.

    Args:
        timeout_s: how long a scope may last; None for any time.
    """

    def __init__(self, timeout_s: float | None = None) -> None:
        self._scopes: set[_Scope] = set()
        self._timeout_s = timeout_s

    def __len__(self) -> int:
        return len(self._scopes)

    def watch(self, receive: Receive) -> RequestScope:
        """A scope for the current task. The request's body must have been read."""
        return RequestScope(self._scopes, receive, self._timeout_s)

    @contextmanager
    def told(self, end: Callable[[Exception], None]) -> Iterator[None]:
        """A block that no task is bound to: ``end`` gets the error, at most once, in place of an interruption."""
        scope = _Told(end)
        timer = None
        if self._timeout_s is not None:
            timer = asyncio.get_running_loop().call_later(
                self._timeout_s, lambda: scope.interrupt(_took_too_long(self._timeout_s))
            )
        self._scopes.add(scope)
        try:
            yield
        finally:
            self._scopes.discard(scope)
            if timer is not None:
                timer.cancel()

    def stop(self, error: Exception) -> None:
        """Raise ``error`` in every scope."""
        for scope in tuple(self._scopes):
            scope.interrupt(error)


class _Told:
    def __init__(self, end: Callable[[Exception], None]) -> None:
        self._end: Callable[[Exception], None] | None = end

    def interrupt(self, reason: Exception) -> None:
        end, self._end = self._end, None
        if end is not None:
            end(reason)


class RequestScope:
    """Context manager that interrupts its body.

    Raises:
        ClientDisconnect: the client went while the body ran.
        RequestTimeoutError: the body took too long.
        Exception: what ``InFlight.stop`` was given.
    """

    def __init__(self, scopes: set[_Scope], receive: Receive, timeout_s: float | None) -> None:
        self._scopes = scopes
        self._receive = receive
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._reason: Exception | None = None

    async def __aenter__(self) -> RequestScope:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._watcher = asyncio.create_task(self._watch())
        self._scopes.add(self)
        if self._timeout_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._time_out)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._scopes.discard(self)
        self._watcher.cancel()
        if self._timer is not None:
            self._timer.cancel()
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

    def _time_out(self) -> None:
        self.interrupt(_took_too_long(self._timeout_s))

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.interrupt(ClientDisconnect())


def _took_too_long(timeout_s: float | None) -> RequestTimeoutError:
    limit = f"{timeout_s:g} s (--request-timeout)"
    return RequestTimeoutError(f"the request took longer than {limit}; ask for less, or try again later")
