"""The inside of the core's process: sockets around a core loop."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from corefw.engine.core_loop import CoreLoop
from corefw.engine.core_sockets import CoreSockets
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
from corefw.messages.control_channel import follow_search_path
from corefw.observability.logging import configure_logging, get_logger
from corefw.observability.stage_times import StageTimes

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.engine.core import EngineCore
    from corefw.parent_guard import ParentGuard
    from corefw.plugin_system.discovery import FoundPlugin

__all__ = ["run_core"]

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
    times = StageTimes.of_process("beginning")
    board = StepBoard(board_fd)
    board.start_beating()
    control = ControlChannel(stream)
    times.enter("waiting for the configuration")
    message = control.receive()
    if not isinstance(message, Configure):
        return 1
    follow_search_path(message.search_path)
    configure_logging(message.log_level, _name(message.config), message.log_format)
    control.send(AddressesWanted())
    addresses = control.receive()
    if not isinstance(addresses, Addresses):
        return 1
    guard.directory = addresses.directory
    sockets = CoreSockets(addresses.requests, addresses.outputs, addresses.key)
    try:
        core = _build(message, control, wait_for_imports, times)
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


def _build(
    message: Configure, control: ControlChannel, wait_for_imports: Callable[[], None], times: StageTimes
) -> EngineCore:
    stages = _Stages(control, times)
    stages.enter("importing")
    wait_for_imports()
    from corefw.engine.core import EngineCore  # scheduler and KV cache aren't needed to connect
    from corefw.plugin_system.manager import PluginManager

    gc.freeze()  # what was imported stays
    gc.enable()
    plugins = PluginManager.from_resolved(message.config.plugins.resolved, message.config.plugins.plugin_policy)
    plugins.watching = stages.watching
    try:
        core = EngineCore(message.config, plugins, stages.enter)
    finally:
        plugins.watching = nullcontext
    _log.info("started in %s", times)
    return core


class _Stages:
    """Tells the parent what the core is about to do, so that it knows when the core dies of that."""

    def __init__(self, control: ControlChannel, times: StageTimes) -> None:
        self._control = control
        self._times = times
        self._stage = ""

    def enter(self, stage: str) -> None:
        self._stage = stage
        self._times.enter(stage)
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


def _loop(core: EngineCore, sockets: CoreSockets) -> CoreLoop:
    if not core.in_lockstep:
        return CoreLoop(core, sockets.send)
    from corefw.engine.lockstep_loop import LockstepLoop

    return LockstepLoop(core, sockets.send)


def _serve(core: EngineCore, sockets: CoreSockets) -> int:
    loop = _loop(core, sockets)
    sockets.start_receiving(loop)
    try:
        loop.run()
    except Exception as error:  # the core's end: said once, to everybody
        _log.exception("the engine core crashed")
        reason = str(error) if isinstance(error, CorefwError) else f"{type(error).__name__}: {error}"
        sockets.send_dead(f"the engine core crashed: {reason}")
        return 1
    finally:
        sockets.close()
        core.shutdown()
    return 0
