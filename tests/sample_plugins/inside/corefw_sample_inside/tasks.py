"""Routes that list the tasks of the event loop, so that a test sees what a request left behind, or hold it up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from corefw.interfaces.endpoint import Endpoint


class TasksEndpoint(Endpoint):
    """GET /sample/tasks, POST /sample/hold_up."""

    name = "inside"
    prefix = ""

    def routes(self) -> Sequence[BaseRoute]:
        """The routes."""
        return (
            Route("/sample/tasks", _tasks, methods=["GET"]),
            Route("/sample/hold_up", _hold_up, methods=["POST"]),
        )


async def _hold_up(request: Request) -> JSONResponse:
    """Keep the event loop busy for so many seconds, as a plugin may by mistake."""
    seconds = float(request.query_params["seconds"])
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point
    return JSONResponse(seconds)


async def _tasks(request: Request) -> JSONResponse:
    """What each unfinished task runs, the one that answers here included."""
    return JSONResponse(sorted(getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks()))
