"""Requests that can't run yet because something isn't there: a grammar, a transfer, an adapter."""

from __future__ import annotations

from typing import Protocol

from corefw.engine.request import Request

__all__ = ["BlockedRequests", "Blocker"]


class Blocker(Protocol):
    """What a request waits for. Asked once a step, so the answer must be at hand.

    Whoever makes it ready also wakes the engine core, which doesn't poll while it has nothing else to do.
    """

    @property
    def reason(self) -> str:
        """What is missing, for people."""
        ...

    def ready(self) -> bool:
        """Whether it is there. Once true, always true."""
        ...


class BlockedRequests:
    """Requests set aside, each with its blocker."""

    def __init__(self) -> None:
        self._blocked: dict[str, tuple[Request, Blocker]] = {}

    def __len__(self) -> int:
        return len(self._blocked)

    def __contains__(self, request: Request) -> bool:
        return request.request_id in self._blocked

    def add(self, request: Request, blocker: Blocker) -> None:
        """Set a request aside."""
        self._blocked[request.request_id] = (request, blocker)

    def remove(self, request: Request) -> None:
        """Take a request out, ready or not."""
        del self._blocked[request.request_id]

    def any_ready(self) -> bool:
        """Whether a request could go on."""
        return any(blocker.ready() for _, blocker in self._blocked.values())

    def take_ready(self) -> list[Request]:
        """Take out the requests that can go on, in order of their setting aside."""
        ready = [request for request, blocker in self._blocked.values() if blocker.ready()]
        for request in ready:
            self.remove(request)
        return ready

    def reasons(self) -> dict[str, str]:
        """By request id, what is missing."""
        return {request_id: blocker.reason for request_id, (_, blocker) in self._blocked.items()}
