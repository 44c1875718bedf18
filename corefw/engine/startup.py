"""The start-up conversation between front end and core process, over a socket pair that exists before anything else."""

from __future__ import annotations

import socket
import struct
import traceback
from typing import Any, Generic, TypeVar

import msgspec

from corefw.config.engine_config import EngineConfig
from corefw.config.runtime_plan import RuntimePlan
from corefw.errors import ConfigError, CorefwError, EngineStartError, PluginError
from corefw.messages.codec import Codec

__all__ = ["Addresses", "AddressesWanted", "Channel", "Configure", "ControlChannel", "Progress", "Ready", "StartFailed"]

_LENGTH = struct.Struct("<I")


class Configure(msgspec.Struct, frozen=True, kw_only=True, tag="configure"):
    """To the core: what to build.

    Attributes:
        config: the resolved configuration, the resolved plugin set in it.
        log_level, log_format: of the core's records.
        search_path: the front end's ``sys.path``, so that import paths mean the same in both processes.
    """

    config: EngineConfig
    log_level: str
    log_format: str = "text"
    search_path: tuple[str, ...]


class AddressesWanted(msgspec.Struct, frozen=True, tag="addresses_wanted"):
    """From the core: it can connect at once. Before that there is no folder of sockets that could be left behind."""


class Addresses(msgspec.Struct, frozen=True, kw_only=True, tag="addresses"):
    """To the core: where the front end listens.

    Attributes:
        directory: private folder of the sockets; gone once both are connected.
        requests: the ROUTER that requests come from.
        outputs: the PULL that takes outputs.
    """

    directory: str
    requests: str
    outputs: str


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """From the core: what it does now."""

    stage: str


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """From the core: it takes requests. The plan carries every decision taken in core and workers."""

    plan: RuntimePlan


class StartFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """From the core: it could not start and exits."""

    kind: str
    message: str
    details: str

    @classmethod
    def from_exception(cls, error: Exception) -> StartFailed:
        """Describe what was raised; corefw's own errors speak for themselves, others get their type's name."""
        message = str(error) if isinstance(error, CorefwError) else f"{type(error).__name__}: {error}"
        details = "".join(traceback.format_exception(error))
        return cls(kind=_kind(error), message=message, details=details)

    def to_exception(self) -> EngineStartError:
        """What the front end raises."""
        return EngineStartError(self.message, details=self.details, kind=self.kind)


def _kind(error: Exception) -> str:
    if isinstance(error, EngineStartError):
        return error.kind
    return "config" if isinstance(error, ConfigError) else "plugin" if isinstance(error, PluginError) else "engine"


T = TypeVar("T")
StartupMessage = Configure | AddressesWanted | Addresses | Progress | Ready | StartFailed


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


class ControlChannel(Channel[StartupMessage]):
    """Carries the conversation."""

    def __init__(self, stream: socket.socket) -> None:
        super().__init__(stream, StartupMessage)
