"""One route that lists the tasks of the event loop, so that a test can see what a request left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from corefw.interfaces.endpoint import Endpoint


class TasksEndpoint(Endpoint):
    """GET /sample/tasks."""

    name = "inside"
    prefix = ""

    def routes(self) -> Sequence[BaseRoute]:
        """The route."""
        return (Route("/sample/tasks", _tasks, methods=["GET"]),)


async def _tasks(request: Request) -> JSONResponse:
    """What each unfinished task runs, the one that answers here included."""
    return JSONResponse(sorted(getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks()))
