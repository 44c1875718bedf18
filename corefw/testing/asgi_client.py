"""Talks to an ASGI app without a socket: for tests of routes, in the test's own process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["AsgiAnswer", "AsgiClient"]

_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class AsgiAnswer:
    """An answer, whole.

    Attributes:
        status: HTTP status.
        headers: names in lower case.
        body: as sent; of a stream all of it.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def events(self) -> list[str]:
        """The data of each server-sent event."""
        return [part.removeprefix("data: ") for part in self.text.split("\n\n") if part.startswith("data: ")]


class AsgiClient:
    """A client of one app, whose start-up and shutdown it runs: see ``open``. One request at a time.

    Args:
        app: any ASGI 3 app.
        headers: sent with every request.
    """

    def __init__(self, app: Any, headers: Mapping[str, str] | None = None) -> None:
        self._app = app
        self._headers = dict(headers or {})
        self._loop = asyncio.new_event_loop()

    @contextmanager
    def open(self) -> Iterator[AsgiClient]:
        """The app is started and stopped around the block."""
        to_app: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        from_app: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        lifespan = self._loop.create_task(self._app(scope, to_app.get, from_app.put))
        try:
            self._tell(to_app, from_app, lifespan, "lifespan.startup")
            yield self
            self._tell(to_app, from_app, lifespan, "lifespan.shutdown")
        finally:
            lifespan.cancel()
            self._loop.run_until_complete(asyncio.gather(lifespan, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def get(self, path: str, **settings: Any) -> AsgiAnswer:
        """GET."""
        return self.request("GET", path, **settings)

    def post(self, path: str, body: Any = None, **settings: Any) -> AsgiAnswer:
        """POST a JSON body."""
        return self.request("POST", path, body=body, **settings)

    def request(
        self, method: str, path: str, *, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> AsgiAnswer:
        """Send a request and wait for the whole answer.

        Args:
            body: bytes as they are; anything else as JSON; None for none.
        """
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", "content-length": str(len(content)), "host": "test"}
        exchange = _exchange(self._app, method, path, content, {**sent, **self._headers, **(headers or {})})
        return self._loop.run_until_complete(asyncio.wait_for(exchange, _LIMIT_S))

    def _tell(
        self,
        to_app: asyncio.Queue[dict[str, str]],
        from_app: asyncio.Queue[dict[str, str]],
        lifespan: asyncio.Task[Any],
        kind: str,
    ) -> None:
        async def told() -> dict[str, str]:
            await to_app.put({"type": kind})
            answer = asyncio.ensure_future(from_app.get())
            await asyncio.wait({answer, lifespan}, timeout=_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            answer.cancel()
            if lifespan.done():
                lifespan.result()
            raise AssertionError(f"the app didn't answer {kind}")

        message = self._loop.run_until_complete(told())
        assert message["type"] == f"{kind}.complete", f"{kind}: {message.get('message', message)}"


async def _exchange(app: Any, method: str, path: str, content: bytes, headers: Mapping[str, str]) -> AsgiAnswer:
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("test", 80),
        "state": {},
    }
    pending = [{"type": "http.request", "body": content, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        if pending:
            return pending.pop()
        await asyncio.Event().wait()  # the client stays
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start = next(message for message in sent if message["type"] == "http.response.start")
    found = {name.decode().lower(): value.decode() for name, value in start.get("headers", ())}
    body = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
    return AsgiAnswer(start["status"], found, body)
