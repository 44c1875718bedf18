"""What commands ask of a server, wherever it is."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from corefw.errors import CorefwError

__all__ = [
    "Answer",
    "EventSplitter",
    "Transport",
    "TransportError",
    "error_message",
    "events",
    "first_model",
    "get_json",
    "post_json",
]


class TransportError(CorefwError):
    """A server can't be reached, broke off, or answered with an error."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer whose head is there. ``chunks`` gives the body as it comes; read it to its end, or close it."""

    status: int
    chunks: AsyncGenerator[bytes, None]

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([chunk async for chunk in self.chunks])


class Transport(Protocol):
    """Sends requests. Used by one event loop."""

    async def send(self, method: str, path: str, body: bytes = b"") -> Answer:
        """Send a request and wait for the answer's head.

        Raises:
            TransportError: no connection, or it broke.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class EventSplitter:
    """Cuts a stream of server-sent events into what their ``data:`` lines hold."""

    def __init__(self) -> None:
        self._rest = b""

    def push(self, chunk: bytes) -> list[bytes]:
        """The events that are complete now."""
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


async def get_json(transport: Transport, path: str) -> Any:
    """A JSON answer.

    Raises:
        TransportError: no answer, or an error.
    """
    answer = await transport.send("GET", path)
    body = await answer.read()
    if answer.status != 200:
        raise TransportError(f"{path} answered {answer.status}: {error_message(body)}")
    return _parsed(path, body)


async def first_model(transport: Transport) -> str:
    """The name of the first model that a server lists.

    Raises:
        TransportError: it lists none.
    """
    listing = await get_json(transport, "/v1/models")
    try:
        return str(listing["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise TransportError("/v1/models names no model; name the one to ask for") from None


async def post_json(transport: Transport, path: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
    """Send an object; status and body of the answer."""
    answer = await transport.send("POST", path, json.dumps(body).encode())
    return answer.status, await answer.read()


async def events(transport: Transport, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    """The JSON values of an event stream.

    Raises:
        TransportError: no answer, an error answer, or an error in the stream.
    """
    answer = await transport.send("POST", path, json.dumps(body).encode())
    if answer.status != 200:
        raise TransportError(f"{path} answered {answer.status}: {error_message(await answer.read())}")
    splitter = EventSplitter()
    async with contextlib.aclosing(answer.chunks) as chunks:
        async for chunk in chunks:
            for data in splitter.push(chunk):
                if data == b"[DONE]":
                    continue
                value = _parsed(path, data)
                if "error" in value:
                    raise TransportError(f"{path} failed: {error_message(data)}")
                yield value


def error_message(body: bytes) -> str:
    """What an error answer says, in one bounded line."""
    try:
        text = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        text = body.decode("utf-8", "replace")
    return " ".join(text[:1000].split())


def _parsed(path: str, body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise TransportError(f"{path} answered with something that isn't JSON: {error_message(body)}") from None
