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
from corefw.engine.clients.connection_watch import ConnectionWatch
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
# How long the end of a core on another machine may be on its way, where its connection has ended.
_LAST_SIGN_S = 5.0
# How long a core on another machine may take to connect.
_REACH_MS = 30_000


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
        self._watch: ConnectionWatch | None = None  # of a core on another machine
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
            ready = self._poll(self._outputs, watch=self._watch)
            if self._outputs not in ready and not self._outputs.poll(_LAST_WORDS_MS):
                raise EngineDeadError(f"the engine core {self._ending()}")
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

    def _ending(self) -> str:
        """A connection's end may be the first sign of the core's, or there was one alone."""
        if self._watch is not None:
            self.process.wait(_LAST_SIGN_S)
        return "lost its connection to this machine" if self.process.alive else self.process.exit_text()

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._context.closed

    def close(self) -> None:
        """Close and remove everything but the process. May be called twice; not while another thread waits."""
        if self._watch is not None:
            self._watch.close()
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
        """Listen once the core is about to connect."""
        if not isinstance(message := self._next_startup_message(), AddressesWanted):
            raise message.to_exception() if isinstance(message, StartFailed) else self.process.exit_error()
        host = self.process.host
        addresses = self._listen_in_folder() if host is None else self._listen_on_network(host)
        try:
            self._control.send(addresses)
        except OSError:
            raise self.process.exit_error() from None

    def _listen_in_folder(self) -> Addresses:
        self._directory = private_directory()
        requests, outputs = (f"ipc://{self._directory / name}" for name in ("requests", "outputs"))
        self._requests.bind(requests)
        self._outputs.bind(outputs)
        return Addresses(directory=str(self._directory), requests=requests, outputs=outputs)

    def _listen_on_network(self, host: str) -> Addresses:
        """On ports that the system gives, and for those alone who know the key: it goes to the core, nowhere else."""
        public, secret = zmq.curve_keypair()
        self._watch = ConnectionWatch(self._outputs)
        bound = []
        for socket in (self._requests, self._outputs):
            socket.curve_server, socket.curve_secretkey = True, secret
            socket.setsockopt(zmq.IPV6, ":" in host)
            try:
                socket.bind(f"tcp://{f'[{host}]' if ':' in host else host}:0")
            except zmq.ZMQError as error:
                raise EngineStartError(f"the engine core's sockets can't listen at {host}: {error}") from error
            bound.append(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        return Addresses(directory=None, requests=bound[0], outputs=bound[1], key=public)

    def _remove_directory(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _wait_connected(self) -> None:
        """Then the folder can go: connected sockets need no name, and what has no name can't be left behind."""
        silent = {self._requests, self._outputs}
        limit_ms = None if self.process.host is None else _REACH_MS
        while silent:
            ready = self._poll(*silent, timeout_ms=limit_ms)
            if not silent & ready and self.process.alive:
                raise self._unreached()
            if not silent & ready:
                raise self._last_words()
            for socket in silent & ready:
                frames = socket.recv_multipart(copy=False)
                if self._watch is not None and socket is self._outputs:
                    self._watch.follow(frames[0])
            silent -= ready
        self._remove_directory()

    def _next_startup_message(self) -> object:
        if self.process.control.fileno() in self._poll(self.process.control.fileno()):
            return self._control.receive()
        return None

    def _unreached(self) -> EngineStartError:
        places = " and ".join(one.getsockopt_string(zmq.LAST_ENDPOINT) for one in (self._requests, self._outputs))
        return EngineStartError(
            f"the engine core can't be reached: it didn't connect to {places} within {_REACH_MS / 1000:g} s; its node "
            "needs a way to this machine, on ports that the system gives"
        )

    def _last_words(self) -> EngineStartError:
        stage = ""
        while (message := self._next_startup_message()) is not None:
            if isinstance(message, StartFailed):
                return message.to_exception()
            if isinstance(message, Progress):
                stage = message.stage
        return self.process.exit_error(stage)

    def _poll(
        self, *sources: zmq.Socket[bytes] | int, timeout_ms: int | None = None, watch: ConnectionWatch | None = None
    ) -> set[object]:
        """Those of the sources that have something; empty when only the core's end is left to report."""
        poller = zmq.Poller()
        for source in (*sources, self.process.exit_fd):
            poller.register(source, zmq.POLLIN)
        if watch is not None:
            poller.register(watch.source, zmq.POLLIN)
        while True:
            ready = {source for source, _ in poller.poll(timeout_ms)}
            if watch is None or ready != {watch.source} or watch.has_ended():
                return ready & set(sources)


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
