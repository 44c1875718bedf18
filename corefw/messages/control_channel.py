"""What a process and the child that it starts tell each other until the child is ready, over a socket pair."""

from __future__ import annotations

import socket
import struct
import sys
import traceback
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec

from corefw.errors import ConfigError, CorefwError, EngineStartError, PluginError
from corefw.messages.codec import Codec

__all__ = ["Channel", "StartFailed", "follow_search_path", "search_path"]

T = TypeVar("T")

_LENGTH = struct.Struct("<I")


class StartFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """From the child: it could not start and exits."""

    kind: str
    message: str
    details: str

    @classmethod
    def from_exception(cls, error: Exception) -> StartFailed:
        """Describe what was raised; corefw's own errors speak for themselves, others get their type's name."""
        message = str(error) if isinstance(error, CorefwError) else f"{type(error).__name__}: {error}"
        details = "".join(traceback.format_exception(error))
        return cls(kind=_kind(error), message=message, details=details)

    def to_exception(self, who: str = "") -> EngineStartError:
        """What the parent raises.

        Args:
            who: names the child, where there are several.
        """
        return EngineStartError(f"{who}: {self.message}" if who else self.message, details=self.details, kind=self.kind)


def _kind(error: Exception) -> str:
    if isinstance(error, EngineStartError):
        return error.kind
    return "config" if isinstance(error, ConfigError) else "plugin" if isinstance(error, PluginError) else "engine"


class Channel(Generic[T]):
    """Length-prefixed messages over a stream socket. Blocking; one thread at each end.

    Args:
        stream: connected.
        messages: their type; may be a union of tagged structs.
    """

    def __init__(self, stream: socket.socket, messages: Any) -> None:
        self._stream = stream
        self._codec: Codec[T] = Codec(messages)

    def send(self, message: T) -> None:
        """Send a message whole.

        Raises:
            OSError: the other end has gone.
        """
        payload = self._codec.encode(message)[0]
        self._stream.sendall(_LENGTH.pack(len(payload)) + payload)

    def receive(self) -> T | None:
        """Wait for the next message; None when the other end has gone."""
        header = self._read(_LENGTH.size)
        payload = self._read(_LENGTH.unpack(header)[0]) if header is not None else None
        return None if payload is None else self._codec.decode([payload])

    def _read(self, num_bytes: int) -> bytes | None:
        received = bytearray()
        while len(received) < num_bytes:
            try:
                part = self._stream.recv(num_bytes - len(received))
            except ConnectionError:
                return None
            if not part:
                return None
            received += part
        return bytes(received)


def search_path() -> tuple[str, ...]:
    """This process's ``sys.path``, for a child, so that import paths mean the same in both; see below."""
    return tuple(path for path in sys.path if path)


def follow_search_path(paths: Iterable[str]) -> None:
    """Look for modules where the parent does as well."""
    sys.path.extend(path for path in paths if path not in sys.path)
