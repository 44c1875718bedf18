"""The front end's end of the wire to a core process: its sockets, their private folder, the start-up handshake."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from corefw import env
from corefw.engine.startup import Addresses, AddressesWanted, Configure, ControlChannel, Progress, Ready, StartFailed
from corefw.errors import EngineDeadError, EngineStartError
from corefw.messages.codec import Codec, Frame
from corefw.messages.control import OutputKind, RequestKind
from corefw.messages.control_channel import search_path
from corefw.messages.outputs import EngineCoreOutputs

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.engine.process import CoreProcess

__all__ = ["CORE_IDENTITY", "CoreLink", "private_directory"]

CORE_IDENTITY = b"core-0"
# sun_path has 108 bytes, one of them for the terminating zero; the longest file name here takes 16.
_MAX_DIRECTORY_BYTES = 107 - 16
# How long frames of a dead core may still be on their way through this process's own ZMQ thread.
_LAST_WORDS_MS = 200


class CoreLink:
    """Blocking face of one core process. ``send`` belongs to one thread, everything that waits to one other.

    Attributes:
        config: what the core was told to build; set by ``configure``.
        process: the child.
        trouble: what the core said last of why it can't be relied on at the moment; None: it can.
        heard_s: when the core's last message came, on the monotonic clock.
    """

    config: EngineConfig

    def __init__(self, process: CoreProcess) -> None:
        self.process = process
        self.trouble: str | None = None
        self.heard_s = time.monotonic()
        self._control = ControlChannel(process.control)
        self._outputs_codec = Codec(EngineCoreOutputs)
        self._directory: Path | None = None
        self._context = zmq.Context()
        self._requests = self._socket(zmq.ROUTER)
        self._outputs = self._socket(zmq.PULL)

    def configure(self, config: EngineConfig, log_level: str | None, log_format: str = "text") -> None:
        """Tell the child what to build."""
        self.config = config
        message = Configure(
            config=config,
            log_level=log_level or env.log_level(),
            log_format=log_format,
            search_path=search_path(),
        )
        try:
            self._control.send(message)
        except OSError:
            raise self.process.exit_error() from None

    def wait_ready(self, on_progress: Callable[[str], None]) -> RuntimePlan:
        """Wait until the core takes requests.

        Raises:
            EngineStartError: with the cause as the core told it, or the exit status of a core that said nothing.
        """
        self._tell_addresses()
        self._wait_connected()
        stage = ""
        while True:
            message = self._next_startup_message()
            if isinstance(message, Ready):
                return message.plan
            if isinstance(message, StartFailed):
                raise message.to_exception()
            if not isinstance(message, Progress):
                raise self.process.exit_error(stage)
            stage = message.stage
            on_progress(stage)

    def receive(self) -> EngineCoreOutputs:
        """Wait for the next outputs.

        Raises:
            EngineDeadError: the core has gone; nothing will come any more.
        """
        while True:
            ready = self._poll(self._outputs)
            if self._outputs not in ready and not self._outputs.poll(_LAST_WORDS_MS):
                raise EngineDeadError(f"the engine core {self.process.exit_text()}")
            kind, *frames = (frame.buffer for frame in self._outputs.recv_multipart(copy=False))
            self.heard_s = time.monotonic()
            match OutputKind(bytes(kind)):
                case OutputKind.DEAD:
                    raise EngineDeadError(bytes(frames[0]).decode())
                case OutputKind.TROUBLE:
                    self.trouble = bytes(frames[0]).decode() or None
                case _:
                    return self._outputs_codec.decode(frames)

    def send(self, kind: RequestKind, frames: list[Frame]) -> None:
        """Send a message; never blocks. A message to a dead core is lost."""
        self._requests.send_multipart([CORE_IDENTITY, kind, *frames], flags=zmq.NOBLOCK, copy=False)

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._context.closed

    def close(self) -> None:
        """Close and remove everything but the process. May be called twice; not while another thread waits."""
        self._context.destroy(linger=0)
        self._remove_directory()

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        try:
            socket = self._context.socket(kind)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise EngineStartError(f"no socket to the engine core can be made: {error}") from error
        socket.set_hwm(0)
        return socket

    def _tell_addresses(self) -> None:
        """Listen in a private folder, once the child is about to connect."""
        if not isinstance(message := self._next_startup_message(), AddressesWanted):
            raise message.to_exception() if isinstance(message, StartFailed) else self.process.exit_error()
        self._directory = private_directory()
        addresses = {name: f"ipc://{self._directory / name}" for name in ("requests", "outputs")}
        self._requests.bind(addresses["requests"])
        self._outputs.bind(addresses["outputs"])
        try:
            self._control.send(Addresses(directory=str(self._directory), **addresses))
        except OSError:
            raise self.process.exit_error() from None

    def _remove_directory(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _wait_connected(self) -> None:
        """Then the folder can go: connected sockets need no name, and what has no name can't be left behind."""
        silent = {self._requests, self._outputs}
        while silent:
            ready = self._poll(*silent)
            if not silent & ready:
                raise self._last_words()
            for socket in silent & ready:
                socket.recv_multipart()
            silent -= ready
        self._remove_directory()

    def _next_startup_message(self) -> object:
        if self.process.control.fileno() in self._poll(self.process.control.fileno()):
            return self._control.receive()
        return None

    def _last_words(self) -> EngineStartError:
        stage = ""
        while (message := self._next_startup_message()) is not None:
            if isinstance(message, StartFailed):
                return message.to_exception()
            if isinstance(message, Progress):
                stage = message.stage
        return self.process.exit_error(stage)

    def _poll(self, *sources: zmq.Socket[bytes] | int) -> set[object]:
        """Those of the sources that have something; empty when only the process's exit is left to report."""
        poller = zmq.Poller()
        for source in (*sources, self.process.exit_fd):
            poller.register(source, zmq.POLLIN)
        return {source for source, _ in poller.poll()} & set(sources)


def private_directory() -> Path:
    """A new folder of mode 0700 whose path leaves room for a socket's name.

    Raises:
        EngineStartError: no temporary directory is short enough, or none takes a folder.
    """
    reasons = []
    for parent in _temporary_directories():
        if len(parent.encode()) + len("/corefw-12345678") > _MAX_DIRECTORY_BYTES:
            reasons.append(f"the path of {parent} is too long for a socket")
            continue
        try:
            return Path(tempfile.mkdtemp(prefix="corefw-", dir=parent))
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror}")
    raise EngineStartError(f"no temporary directory takes the engine's sockets ({'; '.join(reasons)}); set TMPDIR")


def _temporary_directories() -> tuple[str, ...]:
    always = ("/tmp", "/var/tmp", "/dev/shm")
    try:
        return tuple(dict.fromkeys((tempfile.gettempdir(), *always)))
    except OSError:  # it has tried them all, and the current directory
        return always
