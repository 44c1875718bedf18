"""The core's thread where engines compute together: it steps while any of them has work."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from corefw.engine.core_loop import CoreLoop
from corefw.engine.step_board import Doing
from corefw.messages.control import WaveReport
from corefw.messages.outputs import EngineCoreOutputs

if TYPE_CHECKING:
    from corefw.engine.core import EngineCore
    from corefw.messages.control import WaveOrder

__all__ = ["LockstepLoop"]

# Steps between two agreements: each costs a message there and back, and an idle group goes on for so many at most.
_ROUND_STEPS = 16


class LockstepLoop(CoreLoop):
    """See ``Coordinator``, which hears of every beginning and of every round.

    Args:
        core: the core; nobody else touches it from now on.
        send: takes the core's messages, on the core's thread.
    """

    def __init__(self, core: EngineCore, send: Callable[[EngineCoreOutputs], None]) -> None:
        super().__init__(core, send)
        self._wave = 0
        self._is_running = False
        self._num_steps = 0
        self._num_real_steps = 0
        self._order: WaveOrder | None = None
        self._is_woken = False

    def start_wave(self, order: WaveOrder) -> None:
        """From any thread: the coordinator's order."""
        self._inbox.put(partial(self._take_order, order))

    def run(self) -> None:
        """Until ``stop``. Raises what the core raises: it has crashed then."""
        while self._take_messages():
            if not self._is_running:
                self._begin()
            self._step()
            if self._num_steps % _ROUND_STEPS == 0:
                self._agree()

    def _take_messages(self) -> bool:
        while not (self._stopping or self._is_running or self._core.has_work()):
            self._wait_for_message()
        self._take_what_is_there()
        return not self._stopping

    def _begin(self) -> None:
        self._is_running, self._num_steps = True, 0
        self._report()

    def _step(self) -> None:
        """A real step, else a dummy one: what the others compute needs this engine's part."""
        outputs = self._core.step()
        if outputs is not None:
            self._send(outputs)
        num_real_steps = self._num_real_steps
        if outputs is not None and outputs.stats is not None:
            num_real_steps = outputs.stats.num_steps
        if num_real_steps == self._num_real_steps:
            self._turns_to(Doing.CALL)  # it may take as long as the others' first step
            self._core.dummy_step()
        self._num_real_steps = num_real_steps
        self._num_steps += 1

    def _agree(self) -> None:
        """Tell how it stands here, and wait for what all do. Messages are taken meanwhile."""
        self._report()
        while not (self._order or self._stopping or self._is_woken):
            self._wait_for_message()
        if self._order and not self._order.goes_on:
            self._is_running = False
            self._wave += 1

    def _report(self) -> None:
        self._order = None
        report = WaveReport(wave=self._wave, num_steps=self._num_steps, has_work=self._core.has_work())
        self._send(EngineCoreOutputs(wave=report))

    def _take_order(self, order: WaveOrder) -> None:
        if self._is_running:
            self._order = order if self._num_steps else self._order  # else: this engine has begun the wave as well
        elif order.wave == self._wave and order.goes_on:
            self._is_running, self._num_steps = True, 0

    def _wake(self, reason: str) -> None:
        self._is_woken = True
        super()._wake(reason)
