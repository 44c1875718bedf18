"""Requests to an app in this process: the server's own handlers, without a socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

from starlette.types import ASGIApp

from corefw.cli.client.transport import Answer, TransportError

__all__ = ["AsgiTransport"]


class AsgiTransport:
    """Calls an app.

    Args:
        app: with its lifespan begun.
        api_key: sent as a bearer token.
    """

    def __init__(self, app: ASGIApp, *, api_key: str | None = None) -> None:
        self._app = app
        self._headers = [(b"host", b"local"), (b"content-type", b"application/json")]
        if api_key is not None:
            self._headers.append((b"authorization", b"Bearer " + api_key.encode()))

    async def send(self, method: str, path: str, body: bytes = b"") -> Answer:
        """Call the app and wait for the answer's head.

        Raises:
            TransportError: the app failed.
        """
        messages: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        gone = asyncio.Event()
        task = asyncio.create_task(self._call(method, path, body, messages, gone))
        try:
            start = await messages.get()
        except BaseException:
            await _end(task, gone)
            raise
        if start["type"] != "http.response.start":
            await _end(task, gone)
            raise TransportError(f"{path} gave no answer; the log has the reason")
        return Answer(start["status"], _chunks(messages, task, gone))

    async def close(self) -> None:
        """Nothing is open."""

    async def _call(
        self,
        method: str,
        path: str,
        body: bytes,
        messages: asyncio.Queue[MutableMapping[str, Any]],
        gone: asyncio.Event,
    ) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [*self._headers, (b"content-length", str(len(body)).encode())],
            "client": None,
            "server": ("local", None),
            "state": {},
        }
        unread = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> MutableMapping[str, Any]:
            if unread:
                return unread.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        try:
            await self._app(scope, receive, messages.put)
        finally:
            messages.put_nowait({"type": "end"})


async def _chunks(
    messages: asyncio.Queue[MutableMapping[str, Any]], task: asyncio.Task[None], gone: asyncio.Event
) -> AsyncGenerator[bytes, None]:
    try:
        while True:
            message = await messages.get()
            if message["type"] != "http.response.body":
                raise TransportError("the answer broke off; the log has the reason")
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                return
    finally:
        await _end(task, gone)


async def _end(task: asyncio.Task[None], gone: asyncio.Event) -> None:
    gone.set()
    with contextlib.suppress(Exception):  # the app's own barrier has logged it
        await task
