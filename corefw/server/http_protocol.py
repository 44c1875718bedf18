"""uvicorn's HTTP protocol with a limit on the head of a request; httptools itself has none."""

from __future__ import annotations

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from corefw.errors import RequestError
from corefw.server.errors import describe

__all__ = ["MAX_HEAD_BYTES", "BoundedHttpProtocol"]

MAX_HEAD_BYTES = 64 * 2**10
_LINGER_S = 1.0


class BoundedHttpProtocol(HttpToolsProtocol):
    """Answers 431 to a request line and headers that are too long, and closes the connection."""

    _in_head = True
    _refused = False
    _num_head_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Feed the parser; what belongs to an unfinished head is counted."""
        if self._refused:
            return
        if self._in_head and self._num_head_bytes + len(data) > MAX_HEAD_BYTES:
            # Parsed up to the limit, a complete head with a long body behind it passes.
            room = MAX_HEAD_BYTES - self._num_head_bytes
            super().data_received(data[:room])
            if self._in_head and not self.transport.is_closing():
                self._refuse()
                return
            data = data[room:]
        elif self._in_head:
            self._num_head_bytes += len(data)
        if not self.transport.is_closing():
            super().data_received(data)

    def on_message_begin(self) -> None:
        """A new head begins."""
        self._in_head = True
        self._num_head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is complete; what comes next is a head."""
        super().on_message_complete()
        self._in_head = True
        self._num_head_bytes = 0

    def _refuse(self) -> None:
        status, body = describe(
            RequestError(
                f"the request line and headers have more than {MAX_HEAD_BYTES} bytes", code="head_too_large", status=431
            ),
            "",
        )
        content = msgspec.json.encode(body)
        head = (
            f"HTTP/1.1 {status} Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
        )
        self._refused = True
        self.transport.write(head.encode() + content)
        self.transport.write_eof()
        # Closing while the client still sends would reset the connection, and the answer with it.
        self.loop.call_later(_LINGER_S, self.transport.close)
