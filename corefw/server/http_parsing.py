"""uvicorn's HTTP protocol as far as it reads: without upgrades, and with few requests behind the one being answered."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from corefw.errors import RequestError

__all__ = ["MAX_PIPELINED", "ParsingHttpProtocol"]

# Requests that wait for the answer to an earlier one of their connection. Hardly any client sends one.
MAX_PIPELINED = 16
_BODY_HEADERS = (b"content-length", b"transfer-encoding")


class ParsingHttpProtocol(HttpToolsProtocol):
    """Serves a request that offers an upgrade (HTTP/2, WebSocket) as if it didn't, as RFC 9110 (7.8) has it.

    The parser takes such a request's head alone and leaves what follows to the other protocol: clients that offer
    HTTP/2 with every request, as Java's do, would lose their bodies.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = _make_parser(_ParserEvents(self))

    @abstractmethod
    def refuse(self, error: Exception) -> None:
        """End the connection: ``error`` is the answer to what isn't read yet. Nothing is read after it."""

    def parse(self, data: bytes) -> None:
        """Give the parser what came."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:  # also what its callbacks raise
            self.refuse(RequestError("this is no HTTP request that can be served", code="invalid_http"))

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        """Let a new parser read the body; a head that nobody is told of says how long it is."""
        fields = [name + b": " + value + b"\r\n" for name, value in self.headers if name in _BODY_HEADERS]
        self.parser = _make_parser(_ParserEvents(self, skips_head=True))
        self.parse(b"POST / HTTP/1.1\r\n" + b"".join(fields) + b"\r\n")
        self.parse(rest)


class _TooManyRequestsError(Exception):
    """Ends the parser in the middle of what came: a packet holds thousands of requests."""


class _ParserEvents:
    """What a parser reports, passed on to the protocol, but for a head to skip and an end that is none."""

    def __init__(self, protocol: ParsingHttpProtocol, *, skips_head: bool = False) -> None:
        self._protocol = protocol
        self._skips_head = skips_head
        self._is_upgrade = False
        self.on_body = protocol.on_body

    def on_message_begin(self) -> None:
        if not self._skips_head:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._skips_head:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._skips_head:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._skips_head:
            self._skips_head = False
            return
        if len(self._protocol.pipeline) == MAX_PIPELINED:
            raise _TooManyRequestsError
        self._is_upgrade = self._protocol.parser.should_upgrade()
        self._protocol.on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._is_upgrade:  # else the body is still to come
            self._protocol.on_message_complete()


def _make_parser(events: _ParserEvents) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(events)
    # A client that ends its connection with a request may have sent more behind it.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser
