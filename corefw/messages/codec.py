"""Messages as msgpack, typed by message; large array buffers travel beside the message instead of inside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from corefw.errors import EngineError
from corefw.messages.arrays import Array

__all__ = ["INLINE_BYTES", "Codec", "Frame"]

T = TypeVar("T")
Frame = bytes | memoryview

# A frame of its own costs a system call and an allocation; below this, copying is cheaper.
INLINE_BYTES = 4096


class Codec(Generic[T]):
    """Encodes and decodes one type of message. A codec belongs to one thread.

    A message becomes a list of frames: the msgpack first, then one frame a large array, the array's own buffer. An
    array inside the msgpack is ``[dtype, shape, bytes]``, or ``[dtype, shape, index of the frame]``.
    """

    def __init__(self, message_type: type[T]) -> None:
        self._buffers: list[Frame] = []
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._detach)
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(message_type, dec_hook=self._attach)

    def encode(self, message: T) -> list[Frame]:
        """Frames of a message; large arrays are referred to, not copied.

        Raises:
            TypeError, OverflowError: the message holds something that isn't plain data.
        """
        self._buffers = []
        payload = self._encoder.encode(message)
        return [payload, *self._buffers]

    def decode(self, frames: Sequence[Frame]) -> T:
        """The message; its large arrays are views of their frames.

        Raises:
            EngineError: these frames aren't a message of the type.
        """
        self._buffers = list(frames[1:])
        try:
            return self._decoder.decode(frames[0])
        except (msgspec.DecodeError, LookupError) as error:
            raise EngineError(f"undecodable message: {error}") from error

    def _detach(self, value: Any) -> Any:
        if not isinstance(value, Array):
            raise TypeError(f"{type(value).__name__} can't cross a process border; send plain data")
        if len(value.data) < INLINE_BYTES:
            return value.dtype, value.shape, value.data
        self._buffers.append(value.data)
        return value.dtype, value.shape, len(self._buffers) - 1

    def _attach(self, wanted: type, value: Any) -> Any:
        if wanted is not Array:
            raise TypeError(f"{wanted.__name__} isn't part of any message")
        dtype, shape, data = value
        return Array(dtype, tuple(shape), self._buffers[data] if isinstance(data, int) else data)
