"""uvicorn's HTTP protocol with limits on what a client may make the server wait for; httptools itself has none."""

from __future__ import annotations

import asyncio
import contextvars
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from corefw.errors import EngineDeadError, RequestError
from corefw.server.access_log import log_refusal
from corefw.server.errors import describe
from corefw.server.http_parsing import ParsingHttpProtocol
from corefw.server.refusals import note_refusal

if TYPE_CHECKING:
    from starlette.types import Scope

__all__ = ["MAX_HEAD_BYTES", "STOPPING", "BoundedHttpProtocol", "Deadlines"]

MAX_HEAD_BYTES = 64 * 2**10
STOPPING = "the server is shutting down; send the request to another one"
# How long a refused client may take to read its answer and to stop sending.
_LINGER_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Deadlines:
    """How long a client may take to send a request. A connection that is held open costs a descriptor and memory.

    Attributes:
        head_s: for a whole head, from the connection or the first byte after an answer. A head fits into a few
            packets, so 30 s are many retransmissions.
        body_idle_s: without any byte of the body. No living client is silent for so long.
        body_s: for the whole body. The largest one that is allowed comes in that time over a slow line;
            one that trickles doesn't.
    """

    head_s: float = 30.0
    body_idle_s: float = 30.0
    body_s: float = 120.0


class BoundedHttpProtocol(ParsingHttpProtocol):
    """Answers 431 to a head that is too long, 408 to a request that comes too slowly, 400 to what is none, and closes.

    A request that isn't whole when the server stops gets its 503 at once.
    """

    def __init__(
        self, *args: Any, deadlines: Deadlines | None = None, logs_access: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._deadlines = deadlines or Deadlines()
        self._logs_access = logs_access
        self._in_head = True
        self._refused = False
        self._has_begun = False
        self._num_head_bytes = 0
        self._running: RequestResponseCycle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._body_began_s = 0.0
        self._progress_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """The first head is due."""
        super().connection_made(transport)
        self._arm(self._deadlines.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that is being answered, too: with another one behind it uvicorn tells that alone."""
        self._disarm()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser; what belongs to an unfinished head is counted."""
        if self._refused:
            return
        if self._in_head and self._timer is None:
            self._arm(self._deadlines.head_s)
        if self._in_head and self._num_head_bytes + len(data) > MAX_HEAD_BYTES:
            # Parsed up to the limit, a complete head with a long body behind it passes.
            room = MAX_HEAD_BYTES - self._num_head_bytes
            self._num_head_bytes = MAX_HEAD_BYTES
            self.parse(data[:room])
            if self._in_head and self._num_head_bytes == MAX_HEAD_BYTES and not self.transport.is_closing():
                message = f"the request line and headers have more than {MAX_HEAD_BYTES} bytes"
                self.refuse(RequestError(message, code="head_too_large", status=431))
            elif not self.transport.is_closing():
                self.data_received(data[room:])
            return
        if self._in_head:
            self._num_head_bytes += len(data)
        self.parse(data)

    def on_message_begin(self) -> None:
        """A new head begins."""
        self._in_head = self._has_begun = True
        if self._timer is None:
            self._arm(self._deadlines.head_s)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is complete; its body is due."""
        super().on_headers_complete()  # fails for a target that is none
        self._in_head = False
        self._body_began_s = self._progress_s = self.loop.time()
        self._arm(min(self._deadlines.body_idle_s, self._deadlines.body_s))

    def on_body(self, body: bytes) -> None:
        """The body comes."""
        self._progress_s = self.loop.time()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The body is complete; what comes next is a head."""
        self._disarm()
        super().on_message_complete()
        self._in_head = True
        self._has_begun = False
        self._num_head_bytes = 0

    def shutdown(self) -> None:
        """Answer what is whole and has begun; everything else ends."""
        running = self._running
        if running is None or running.response_complete:
            self.transport.close()
        elif running is not self.cycle or self._in_head:
            self.pipeline.clear()
            running.keep_alive = False
        else:
            self.refuse(EngineDeadError(STOPPING))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        # Else the request may begin with what an earlier one of its connection set.
        contextvars.Context().run(super()._start_asgi_task, cycle, app)

    def _arm(self, delay_s: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(delay_s, self._on_deadline)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_deadline(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        now_s = self.loop.time()
        due_s = min(self._progress_s + self._deadlines.body_idle_s, self._body_began_s + self._deadlines.body_s)
        if self.flow.read_paused:  # it is the server that doesn't read
            self._progress_s = now_s
            self._arm(self._deadlines.body_idle_s)
        elif self._in_head:
            self._refuse_late_head()
        elif now_s < due_s:
            self._arm(due_s - now_s)
        else:
            self.refuse(_late("body"))

    def _refuse_late_head(self) -> None:
        if self._has_begun:
            self.refuse(_late("head"))
        elif self._running is None or self._running.response_complete:
            self.transport.close()  # nothing was asked

    def refuse(self, error: Exception) -> None:
        """End the connection with an answer, or after the one that is on its way."""
        self._refused = True
        self._disarm()
        running = self._running
        is_answering = running is not None and not running.response_complete
        if is_answering and (self._in_head or running is not self.cycle):
            self._end_after_whole_requests()
        elif self._in_head:
            self._write_refusal(error)
        else:
            assert running is not None, "a head that is complete was given to the application"
            running.disconnected = is_answering  # its task ends as with a client that goes
            running.message_event.set()
            if running.response_started:
                self.transport.close()
            else:
                self._write_refusal(error, running)

    def _end_after_whole_requests(self) -> None:
        if not self._in_head:
            self.pipeline.popleft()  # the newest one, which is not whole
        last = self.pipeline[0][0] if self.pipeline else self._running
        assert last is not None, "something is being answered"
        last.keep_alive = False

    def _write_refusal(self, error: Exception, unread: RequestResponseCycle | None = None) -> None:
        status, body = describe(error, "")
        if unread is not None:
            note_refusal(cast("Scope", unread.scope), status)
        elif self._logs_access:
            log_refusal(self.client, status, body.error.code)
        content = msgspec.json.encode(body)
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + content)
        if self.transport.can_write_eof():  # not over TLS
            self.transport.write_eof()
        # Closing while the client still sends would reset the connection, and the answer with it.
        self.loop.call_later(_LINGER_S, self.transport.close)


def _late(part: str) -> RequestError:
    message = f"the {part} of the request came too slowly; send it again on a new connection"
    return RequestError(message, code="request_timeout", status=408)
