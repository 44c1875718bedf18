"""The inside of the core's process: sockets around a core loop."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import msgspec
import zmq

from corefw.engine.core_loop import CoreLoop
from corefw.engine.startup import (
    Addresses,
    AddressesWanted,
    Configure,
    ControlChannel,
    Progress,
    Ready,
    StartFailed,
)
from corefw.engine.step_board import StepBoard
from corefw.errors import CorefwError
from corefw.messages.codec import Codec, Frame
from corefw.messages.control import OutputKind, RequestKind, UtilityCall
from corefw.messages.outputs import EngineCoreOutput, EngineCoreOutputs
from corefw.messages.request import EngineCoreRequest, PlainDict
from corefw.observability.logging import configure_logging, get_logger

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.engine.core import EngineCore
    from corefw.engine.core_main import ParentGuard
    from corefw.plugin_system.discovery import FoundPlugin

__all__ = ["run_core"]

_IDENTITY = b"core-0"
_LINGER_MS = 1000
# What an encoder raises for an object, a number beyond 64 bits, a lone surrogate.
_UNSENDABLE = (TypeError, ValueError, OverflowError)

_log = get_logger(__name__)


def run_core(stream: socket.socket, guard: ParentGuard, wait_for_imports: Callable[[], None], board_fd: int) -> int:
    """Build the engine that the parent asks for, and run it until the parent stops it.

    Args:
        stream: the control socket.
        guard: of the parent's life.
        wait_for_imports: returns when what was imported ahead is there.
        board_fd: memory that the parent reads, see ``StepBoard``; is closed.

    Returns:
        The process's exit status: 0 after a stop, 1 when the start failed or the core crashed.
    """
    board = StepBoard(board_fd)
    board.start_beating()
    control = ControlChannel(stream)
    message = control.receive()
    if not isinstance(message, Configure):
        return 1
    sys.path.extend(path for path in message.search_path if path not in sys.path)
    configure_logging(message.log_level, _name(message.config), message.log_format)
    control.send(AddressesWanted())
    addresses = control.receive()
    if not isinstance(addresses, Addresses):
        return 1
    guard.directory = addresses.directory
    sockets = CoreSockets(addresses.requests, addresses.outputs)
    try:
        core = _build(message, control, wait_for_imports)
    except Exception as error:  # whatever it is, the parent has to say it
        control.send(StartFailed.from_exception(error))
        sockets.close()
        return 1
    core.board = board
    control.send(Ready(plan=core.plan))
    return _serve(core, sockets)


def _name(config: EngineConfig) -> str:
    """What log lines carry."""
    rank = config.parallel.data_parallel_rank
    return "core" if rank is None else f"core {rank}"


def _build(message: Configure, control: ControlChannel, wait_for_imports: Callable[[], None]) -> EngineCore:
    control.send(Progress(stage="importing"))
    wait_for_imports()
    from corefw.engine.core import EngineCore  # scheduler and KV cache aren't needed to connect
    from corefw.plugin_system.manager import PluginManager

    stages = _Stages(control)
    plugins = PluginManager.from_resolved(message.config.plugins.resolved, message.config.plugins.plugin_policy)
    plugins.watching = stages.watching
    try:
        return EngineCore(message.config, plugins, stages.enter)
    finally:
        plugins.watching = nullcontext


class _Stages:
    """Tells the parent what the core is about to do, so that it knows when the core dies of that."""

    def __init__(self, control: ControlChannel) -> None:
        self._control = control
        self._stage = "importing"

    def enter(self, stage: str) -> None:
        self._stage = stage
        self._tell(stage)

    @contextmanager
    def watching(self, plugin: FoundPlugin) -> Iterator[None]:
        if plugin.builtin:
            yield
            return
        self._tell(f"loading plugin {plugin.full_name} ({plugin.group})")
        yield
        self._tell(self._stage)

    def _tell(self, stage: str) -> None:
        self._control.send(Progress(stage=stage))


def _serve(core: EngineCore, sockets: CoreSockets) -> int:
    loop = CoreLoop(core, sockets.send)
    sockets.start_receiving(loop)
    try:
        loop.run()
    except Exception as error:  # the core's end: said once, to everybody
        _log.exception("the engine core crashed")
        sockets.send_dead(str(error) if isinstance(error, CorefwError) else f"{type(error).__name__}: {error}")
        return 1
    finally:
        sockets.close()
        core.shutdown()
    return 0


class CoreSockets:
    """The core's end of the wire: a DEALER that a thread of its own reads, and a PUSH that the core's thread writes."""

    def __init__(self, requests_address: str, outputs_address: str) -> None:
        self._context = zmq.Context()
        self._requests = self._connect(zmq.DEALER, requests_address)
        self._outputs = self._connect(zmq.PUSH, outputs_address)
        self._codec = Codec(EngineCoreOutputs)
        self._receiver: threading.Thread | None = None

    def start_receiving(self, loop: CoreLoop) -> None:
        """Decode messages on another thread, so that they are at hand when a step ends, aborts even before."""
        receiver = RequestReceiver(self._requests, loop)
        self._receiver = threading.Thread(target=receiver.run, name="core-requests", daemon=True)
        self._receiver.start()

    def send(self, outputs: EngineCoreOutputs) -> None:
        """Send outputs; never blocks."""
        try:
            frames = self._codec.encode(outputs)
        except _UNSENDABLE:  # a plugin's mistake, which must not become everybody's
            _log.exception("what plugins added to an output isn't plain data, and is left out")
            frames = self._codec.encode(self._without_unsendable(outputs))
        self._outputs.send_multipart([OutputKind.OUTPUTS, *frames], copy=False)

    def send_dead(self, reason: str) -> None:
        """Say that nothing comes any more, and why."""
        self._outputs.send_multipart([OutputKind.DEAD, reason.encode()])

    def close(self) -> None:
        """Send what is left, then close; ends the receiving thread."""
        self._outputs.close(linger=_LINGER_MS)
        if self._receiver is None:
            self._requests.close(linger=0)
        self._context.term()  # wakes the receiver, which closes its socket
        if self._receiver is not None:
            self._receiver.join()

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
        connection.connect(address)
        connection.send(OutputKind.HELLO)
        return connection


class _RequestId(msgspec.Struct):
    """As much of a request as is needed to refuse it."""

    request_id: str


class RequestReceiver:
    """Reads requests until the core is told to stop. Runs on a thread of its own."""

    def __init__(self, requests: zmq.Socket[bytes], loop: CoreLoop) -> None:
        self._socket = requests
        self._loop = loop
        self._requests = Codec(EngineCoreRequest)
        self._request_ids = Codec(_RequestId)
        self._aborts = Codec(list[str])
        self._calls = Codec(UtilityCall)

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
                self._loop.abort(self._aborts.decode(frames))
            case RequestKind.UTILITY:
                self._loop.call(self._calls.decode(frames))
            case RequestKind.SHUTDOWN:
                self._loop.stop()
                return False
        return True

    def _add(self, frames: tuple[Frame, ...]) -> None:
        try:
            request = self._requests.decode(frames)
        except CorefwError as error:  # a field of the wrong type, or one out of its range
            self._loop.reject(self._request_ids.decode(frames).request_id, str(error))
        else:
            self._loop.add_request(request)
