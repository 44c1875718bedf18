"""The core's end of the wire to a front end: what it reads on a thread of its own, and what it writes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Protocol

import msgspec
import zmq

from corefw.errors import CorefwError
from corefw.messages.codec import Codec, Frame
from corefw.messages.control import OutputKind, RequestKind, UtilityCall, WaveOrder
from corefw.messages.outputs import EngineCoreOutput, EngineCoreOutputs
from corefw.messages.request import EngineCoreRequest, PlainDict
from corefw.observability.logging import get_logger

__all__ = ["CoreSockets", "RequestSink"]

_IDENTITY = b"core-0"
_LINGER_MS = 1000
# What an encoder raises for an object, a number beyond 64 bits, a lone surrogate.
_UNSENDABLE = (TypeError, ValueError, OverflowError)

_log = get_logger(__name__)


class RequestSink(Protocol):
    """Takes what the front end sends; from any thread, never blocks."""

    def add_request(self, request: EngineCoreRequest) -> None: ...
    def reject(self, request_id: str, error: str) -> None: ...
    def abort(self, request_ids: Sequence[str]) -> None: ...
    def call(self, call: UtilityCall) -> None: ...
    def start_wave(self, order: WaveOrder) -> None: ...
    def stop(self) -> None: ...


class CoreSockets:
    """The core's end of the wire: a DEALER that a thread of its own reads, and a PUSH that the core's thread writes.

    Args:
        requests_address, outputs_address: where the front end listens.
        key: its public key; None where it has none.
    """

    def __init__(self, requests_address: str, outputs_address: str, key: bytes | None = None) -> None:
        self._context = zmq.Context()
        self._key = key
        self._requests = self._connect(zmq.DEALER, requests_address)
        self._outputs = self._connect(zmq.PUSH, outputs_address)
        self._codec = Codec(EngineCoreOutputs)
        self._receiver: threading.Thread | None = None

    def start_receiving(self, sink: RequestSink) -> None:
        """Decode messages on another thread, so that they are at hand when a step ends, aborts even before."""
        receiver = RequestReceiver(self._requests, sink)
        self._receiver = threading.Thread(target=receiver.run, name="core-requests", daemon=True)
        self._receiver.start()

    def send(self, outputs: EngineCoreOutputs) -> None:
        """Send outputs; never blocks."""
        try:
            frames = self._codec.encode(outputs)
        except _UNSENDABLE:  # a plugin's mistake, which must not become everybody's
            _log.exception("what plugins added to an output isn't plain data, and is left out")
            frames = self._codec.encode(self._without_unsendable(outputs))
        self._push([OutputKind.OUTPUTS, *frames], copy=False)

    def send_dead(self, reason: str) -> None:
        """Say that nothing comes any more, and why."""
        self._push([OutputKind.DEAD, reason.encode()])

    def send_trouble(self, trouble: str | None) -> None:
        """Say that the core can't be relied on at the moment, or that it can again."""
        self._push([OutputKind.TROUBLE, (trouble or "").encode()])

    def close(self) -> None:
        """Send what is left, then close; ends the receiving thread."""
        self._outputs.close(linger=_LINGER_MS)
        if self._receiver is None:
            self._requests.close(linger=0)
        self._context.term()  # wakes the receiver, which closes its socket
        if self._receiver is not None:
            self._receiver.join()

    def _push(self, frames: list[Frame], *, copy: bool = True) -> None:
        """A front end that has gone hears nothing any more; to wait for another one would be for ever."""
        with contextlib.suppress(zmq.Again):
            self._outputs.send_multipart(frames, flags=zmq.NOBLOCK, copy=copy)

    def _without_unsendable(self, outputs: EngineCoreOutputs) -> EngineCoreOutputs:
        kept = [msgspec.structs.replace(o, extra=self._sendable_extra(o)) for o in outputs.outputs]
        return msgspec.structs.replace(outputs, outputs=kept)

    def _sendable_extra(self, output: EngineCoreOutput) -> PlainDict:
        try:
            self._codec.encode(EngineCoreOutputs(outputs=[output]))
        except _UNSENDABLE:
            return {}
        return output.extra

    def _connect(self, kind: int, address: str) -> zmq.Socket[bytes]:
        connection = self._context.socket(kind)
        connection.set_hwm(0)
        connection.setsockopt(zmq.IDENTITY, _IDENTITY)
        # What was lost with a connection would be missing for ever: the front end takes its end for the core's.
        connection.setsockopt(zmq.RECONNECT_IVL, -1)
        if self._key is not None:
            connection.curve_serverkey = self._key
            connection.curve_publickey, connection.curve_secretkey = zmq.curve_keypair()
        connection.connect(address)
        connection.send(OutputKind.HELLO)
        return connection


class _RequestId(msgspec.Struct):
    """As much of a request as is needed to refuse it."""

    request_id: str


class RequestReceiver:
    """Reads requests until it is told to stop. Runs on a thread of its own."""

    def __init__(self, requests: zmq.Socket[bytes], sink: RequestSink) -> None:
        self._socket = requests
        self._sink = sink
        self._requests = Codec(EngineCoreRequest)
        self._request_ids = Codec(_RequestId)
        self._aborts = Codec(list[str])
        self._calls = Codec(UtilityCall)
        self._orders = Codec(WaveOrder)

    def run(self) -> None:
        """The thread."""
        try:
            while self._take(*(frame.buffer for frame in self._socket.recv_multipart(copy=False))):
                pass
        except zmq.ContextTerminated:
            pass
        finally:
            self._socket.close(linger=0)

    def _take(self, kind: Frame, *frames: Frame) -> bool:
        match RequestKind(bytes(kind)):
            case RequestKind.ADD:
                self._add(frames)
            case RequestKind.ABORT:
                self._sink.abort(self._aborts.decode(frames))
            case RequestKind.UTILITY:
                self._sink.call(self._calls.decode(frames))
            case RequestKind.START_WAVE:
                self._sink.start_wave(self._orders.decode(frames))
            case RequestKind.SHUTDOWN:
                self._sink.stop()
                return False
        return True

    def _add(self, frames: tuple[Frame, ...]) -> None:
        try:
            request = self._requests.decode(frames)
        except CorefwError as error:  # a field of the wrong type, or one out of its range
            self._sink.reject(self._request_ids.decode(frames).request_id, str(error))
        else:
            self._sink.add_request(request)
