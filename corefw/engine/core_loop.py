"""The core's own thread: takes what comes in, steps while there is work, sends what comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from corefw.engine.step_board import Doing
from corefw.errors import CorefwError, RequestError
from corefw.messages.outputs import EngineCoreOutputs, ErrorKind, UtilityResult
from corefw.messages.plain import valid_text
from corefw.observability.logging import get_logger

if TYPE_CHECKING:
    from corefw.engine.core import EngineCore
    from corefw.messages.control import UtilityCall, WaveOrder
    from corefw.messages.request import EngineCoreRequest

__all__ = ["CoreLoop"]

_log = get_logger(__name__)


class CoreLoop:
    """Drives one core. ``run`` is the thread; every other method may be called from any thread and never blocks.

    Args:
        core: the core; nobody else touches it from now on.
        send: takes the core's messages, on the core's thread.
    """

    def __init__(self, core: EngineCore, send: Callable[[EngineCoreOutputs], None]) -> None:
        self._core = core
        self._send = send
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stopping = False
        core.on_failure(self._wake)

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a request."""
        self._inbox.put(partial(self._core.add_request, request))

    def reject(self, request_id: str, error: str) -> None:
        """End a request that couldn't even be read."""
        self._inbox.put(partial(self._core.reject, request_id, error))

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests; those of the running step before its result is taken."""
        # In this order: whoever takes the message from the inbox also empties the core's own queue of aborts, so that
        # no abort is still in there when a later request of the same id has been added.
        self._core.abort_soon(request_ids)
        self._inbox.put(partial(self._core.abort, request_ids))

    def call(self, call: UtilityCall) -> None:
        """Call the core by name; the answer is sent."""
        self._inbox.put(partial(self._answer, call))

    def start_wave(self, order: WaveOrder) -> None:
        """What engines that compute together are told; this one computes alone."""
        del order

    def stop(self) -> None:
        """Let ``run`` return after the running step."""
        self._inbox.put(self._stop)

    def run(self) -> None:
        """Until ``stop``. Raises what the core raises: it has crashed then."""
        while self._take_messages():
            outputs = self._core.step()
            if outputs is not None:
                self._send(outputs)

    def _take_messages(self) -> bool:
        if not self._core.has_work():
            self._wait_for_message()
        self._take_what_is_there()
        return not self._stopping

    def _wait_for_message(self) -> None:
        self._turns_to(Doing.WAITING)
        message = self._inbox.get()
        self._turns_to(Doing.WORK)
        message()

    def _take_what_is_there(self) -> None:
        self._turns_to(Doing.WORK)
        while not self._inbox.empty():
            self._inbox.get_nowait()()
            self._turns_to(Doing.WORK)

    def _turns_to(self, doing: Doing) -> None:
        if self._core.board is not None:
            self._core.board.turns_to(doing)

    def _answer(self, call: UtilityCall) -> None:
        self._turns_to(Doing.CALL)
        try:
            result = UtilityResult(call_id=call.call_id, value=self._core.call(call.method, call.args))
        except CorefwError as error:
            kind = ErrorKind.REQUEST if isinstance(error, RequestError) else ErrorKind.ENGINE
            result = UtilityResult(call_id=call.call_id, error=valid_text(str(error)), error_kind=kind)
        except Exception as error:  # a wrong call is the caller's trouble, not every request's
            _log.exception("call of %s failed", call.method)
            result = UtilityResult(call_id=call.call_id, error=valid_text(f"{type(error).__name__}: {error}"))
        self._send(self._core.with_events(EngineCoreOutputs(utility=result)))

    def _stop(self) -> None:
        self._stopping = True

    def _wake(self, reason: str) -> None:
        del reason  # the core raises it in its next step
        self._inbox.put(lambda: None)
