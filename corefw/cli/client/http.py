"""HTTP/1.1 over asyncio, with httptools as the parser: a few microseconds a chunk, so that it can measure a server."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncGenerator
from typing import cast
from urllib.parse import urlsplit

import httptools

from corefw.cli.client.transport import Answer, TransportError

__all__ = ["HttpTransport"]


class HttpTransport:
    """Sends requests to one server, one at a time over each connection.

    Args:
        url: ``http://host:port`` or ``https://…``; a path in it goes before every request's path.
        api_key: sent as a bearer token.
        reuse: keep connections open between requests.

    Raises:
        TransportError: not an HTTP URL.
    """

    def __init__(self, url: str, *, api_key: str | None = None, reuse: bool = True) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TransportError(f"{url[:200]!r} is no URL of a server; write http://HOST:PORT")
        self._url = url
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        key = "" if api_key is None else f"Authorization: Bearer {api_key}\r\n"
        self._head = f"Host: {parts.netloc.rpartition('@')[2]}\r\n{key}Content-Type: application/json\r\n"
        self._reuse = reuse
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    async def send(self, method: str, path: str, body: bytes = b"") -> Answer:
        """Send a request and wait for the answer's head.

        Raises:
            TransportError: no connection, or it broke.
        """
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        message = head.encode() + body
        idle = self._idle_connection()
        if idle is not None:
            try:
                return await self._exchange(idle, message)
            except TransportError:
                # A server may close what was idle at the moment at which it is used again. Once only: a request that
                # a server dies of must not go out on every connection there is.
                if idle.has_answered:
                    raise
        return await self._exchange(await self._new_connection(), message)

    async def _exchange(self, connection: _Connection, message: bytes) -> Answer:
        try:
            status = await connection.request(message)
        except BaseException:
            self._release(connection)
            raise
        return Answer(status, self._chunks(connection))

    async def close(self) -> None:
        """Close all connections."""
        for connection in tuple(self._open):
            connection.close()
        self._open.clear()
        self._idle.clear()
        await asyncio.sleep(0)

    def _idle_connection(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            self._release(connection)
        return None

    async def _new_connection(self) -> _Connection:
        try:
            _, made = await asyncio.get_running_loop().create_connection(
                _Connection, self._host, self._port, ssl=self._tls
            )
        except OSError as error:
            raise TransportError(f"{self._url} can't be reached: {error}; is a server running there?") from None
        self._open.add(made)
        return made

    async def _chunks(self, connection: _Connection) -> AsyncGenerator[bytes, None]:
        try:
            while (chunk := await connection.next_chunk()) is not None:
                yield chunk
        finally:
            self._release(connection)

    def _release(self, connection: _Connection) -> None:
        if self._reuse and connection.usable:
            self._idle.append(connection)
        else:
            connection.close()
            self._open.discard(connection)


class _Connection(asyncio.Protocol):
    """One connection, one request at a time.

    Attributes:
        has_answered: whether anything has come back since the last request.
    """

    def __init__(self) -> None:
        self.has_answered = False
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._chunks: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._has_head = False
        self._complete = True
        self._lost: str | None = None
        self._keep_alive = True

    @property
    def usable(self) -> bool:
        """Whether another request may be sent."""
        return self._complete and self._keep_alive and self._lost is None and not self._transport.is_closing()

    async def request(self, message: bytes) -> int:
        """Send, and wait for the status."""
        self._parser = httptools.HttpResponseParser(self)
        self._chunks.clear()
        self._has_head = self._complete = self.has_answered = False
        self._transport.write(message)
        while not self._has_head:
            await self._news()
        return self._parser.get_status_code()

    async def next_chunk(self) -> bytes | None:
        """A part of the body; None at its end."""
        while not self._chunks:
            if self._complete:
                return None
            await self._news()
        return self._chunks.popleft()

    def close(self) -> None:
        """Close."""
        self._transport.close()

    async def _news(self) -> None:
        if self._lost is not None:
            raise TransportError(f"the server broke off the connection: {self._lost}")
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.has_answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lost = f"not HTTP ({error})"
            self._transport.close()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._lost or (str(exc) if exc else "closed")
        self._wake()

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        self._keep_alive = self._parser.should_keep_alive()
        self._complete = True
