"""A core that comes back: when its process dies, another one takes its place and what was in flight goes on."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from corefw.engine.clients.base import AsyncCoreClient
from corefw.engine.journal import Journal
from corefw.engine.ledger import Entry, Ledger
from corefw.engine.liveness import Pulse, StepTimes
from corefw.engine.restart_policy import RestartPolicy
from corefw.engine.running_totals import RunningTotals
from corefw.engine.step_board import Doing
from corefw.engine.suspects import Finding, Suspects
from corefw.errors import EngineDeadError, EngineError
from corefw.messages.codec import Codec
from corefw.messages.control import UtilityCall
from corefw.messages.outputs import EngineCoreOutputs, FinishReason, UtilityResult
from corefw.messages.request import EngineCoreRequest
from corefw.observability.logging import get_logger

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.engine.clients.multiprocess import MultiProcessClient
    from corefw.engine.process import CoreProcess
    from corefw.engine.step_board import BoardReader

__all__ = ["SupervisedClient"]

_LOOK_S = 0.1
# A core that has said why it ends gets so long to stop its workers in order.
_LAST_RITES_S = 2.0
# An idle core that lived so long before it died wasn't started in vain.
_HEALTHY_S = 60.0

_log = get_logger(__name__)


class SupervisedClient(AsyncCoreClient):
    """Stands in for a core's client and outlives the core. Made while the event loop runs.

    Requests wait while there is no core; each then goes on where it stopped, because its tokens so far go with it. One
    that crashes the core again and again is found (see ``Suspects``) and fails alone.

    Args:
        core: connected; owned by this client from now on.
        policy: when to try again.
    """

    def __init__(self, core: MultiProcessClient, policy: RestartPolicy | None = None) -> None:
        self.config: EngineConfig = core.config
        self.plan: RuntimePlan = core.plan
        self._max_model_len = core.plan.max_model_len
        self._policy = policy or RestartPolicy()
        self._news: deque[EngineCoreOutputs] = deque()
        self._woken = asyncio.Event()
        self._end: EngineDeadError | None = None
        self._stopping = False
        self._ledger = Ledger(self._progressed)
        self._suspects = Suspects()
        self._journal = Journal()
        self._calls: dict[int, tuple[UtilityCall, bool]] = {}
        self._replay_ids = itertools.count(-1, -1)
        self._totals = RunningTotals()
        self._sendable = Codec(EngineCoreRequest)
        self._sendable_calls = Codec(UtilityCall)
        self._num_fruitless = 0
        self._any_progress = False
        self._core: MultiProcessClient | None = core
        self._process = core.process
        self._buried: MultiProcessClient | None = None
        self._ready_s = time.monotonic()
        self._step_times = StepTimes(self._policy.limits)
        took_s = self._ready_s - core.process.spawned_s
        self._start_limit_s = max(self._policy.limits.start_s, self._policy.limits.step_factor * took_s)
        self._pulse = self._pulse_of(core.process, is_ready=True)
        self._reason = ""
        self._restart_task: asyncio.Task[None] | None = None
        self._watch_task = asyncio.create_task(self._watch(), name="core-watch")

    @property
    def pid(self) -> int:
        """Process id of the present core, or of the one that starts."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether there is a core, or there will be one again."""
        return self._end is None and (self._core is None or self._core.alive)

    @property
    def trouble(self) -> str | None:
        if self._core is None or not self._core.alive:
            return self._reason or "the engine core has just died"
        return self._pulse.trouble

    def add_request(self, request: EngineCoreRequest) -> None:
        if self._core is None or self._suspects.group is not None:
            self._sendable.encode(request)  # what can't be sent is refused now, not when there is a core
            self._ledger.add(request)
            return
        self._core.add_request(request)
        self._ledger.add(request).is_in_core = True

    def abort(self, request_ids: Sequence[str]) -> None:
        in_core: list[str] = []
        for entry in filter(None, map(self._ledger.get, request_ids)):
            entry.is_aborted = True
            if entry.is_in_core:
                in_core.append(entry.request.request_id)
            else:
                self._tell(self._ledger.end(entry.request.request_id, FinishReason.ABORT))
        if self._core is not None and in_core:
            self._core.abort(in_core)

    def call(self, call: UtilityCall) -> None:
        if self._core is not None:
            self._core.call(call)
        else:
            self._sendable_calls.encode(call)
        self._calls[call.call_id] = (call, self._core is not None)

    async def next_outputs(self) -> EngineCoreOutputs:
        while True:
            if self._news:
                return self._news.popleft()
            if self._end is not None:
                raise self._end
            core = self._core
            if core is None:
                self._woken.clear()
                await self._woken.wait()
                continue
            try:
                return self._taken(await core.next_outputs())
            except EngineError as error:
                self._lost(core, error)

    async def stop(self, timeout_s: float) -> None:
        self._stopping = True
        for task in filter(None, (self._restart_task, self._watch_task)):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for core in filter(None, (self._buried, self._core)):
            await core.stop(timeout_s)
        self._give_up(EngineDeadError("the engine core was stopped"))

    # What the core sends.

    def _taken(self, message: EngineCoreOutputs) -> EngineCoreOutputs:
        if message.outputs:
            message = msgspec.structs.replace(message, outputs=self._ledger.take(message.outputs))
        if message.stats is not None:
            message = msgspec.structs.replace(message, stats=self._totals.take(message.stats))
        if message.utility is not None:
            message = msgspec.structs.replace(message, utility=self._answered(message.utility))
        return message

    def _progressed(self, request_id: str, has_token: bool) -> None:
        self._any_progress |= has_token
        if self._suspects.clear(request_id) and self._core is not None:
            self._let_run(self._core)

    def _answered(self, result: UtilityResult) -> UtilityResult | None:
        if result.call_id < 0:
            if result.error is not None:
                _log.error("what was set at run time can't be set again: %s", result.error)
            return None
        call, _ = self._calls.pop(result.call_id)
        if result.error is None:
            self._journal.record(call.method, call.args)
        return result

    def _tell(self, message: EngineCoreOutputs) -> None:
        """News that don't come from a core."""
        if self._core is not None:
            self._core.deliver(message)
        else:
            self._news.append(message)
            self._woken.set()

    # A core's death.

    def _lost(self, core: MultiProcessClient, error: EngineError) -> None:
        self._core = None
        self._buried = core
        reason = f"the engine core {self._pulse.verdict}" if self._pulse.verdict else str(error)
        if self._stopping or self._policy.max_restarts == 0:
            self._give_up(EngineDeadError(reason))
            return
        finding = self._find_culprit(core.process.board)
        was_idle_long = not len(self._ledger) and time.monotonic() - self._ready_s >= _HEALTHY_S
        if self._any_progress or finding.is_news or was_idle_long:
            self._num_fruitless = 0
        self._ledger.core_lost()
        self._end_aborted()
        self._end_culprit(finding, reason)
        self._fail_calls()
        self._tell(EngineCoreOutputs(stats=self._totals.core_lost(num_waiting=len(self._ledger))))
        if self._count_restart(reason):
            self._restart_task = asyncio.create_task(self._restart(core), name="core-restart")

    def _find_culprit(self, board: BoardReader) -> Finding:
        """Where no step was under way, any request in the core may have been it; in a call none of them."""
        if board.doing is Doing.CALL:
            return Finding()
        running_ids = board.running_ids()
        in_core = [entry.request.request_id for entry in self._ledger if entry.is_in_core and not entry.is_aborted]
        ran = [request_id for request_id in running_ids if request_id in self._ledger] or in_core
        return self._suspects.crashed(ran) if ran else Finding()

    def _end_aborted(self) -> None:
        for entry in self._ledger:
            if entry.is_aborted:
                self._tell(self._ledger.end(entry.request.request_id, FinishReason.ABORT))

    def _end_culprit(self, finding: Finding, reason: str) -> None:
        if finding.culprit is None or finding.culprit not in self._ledger:
            return
        _log.error("request %s crashed the engine core each time it ran, also alone: %s", finding.culprit, reason)
        error = "the engine crashed each time it computed this request, even alone; don't send it again as it is"
        self._tell(self._ledger.end(finding.culprit, FinishReason.ERROR, error))

    def _fail_calls(self) -> None:
        """Calls of plugins may have had their effect; the core's own are made again."""
        for call, was_sent in tuple(self._calls.values()):
            if was_sent and "." in call.method:
                del self._calls[call.call_id]
                error = "the engine core died before it answered; whether the call had an effect isn't known"
                self._tell(EngineCoreOutputs(utility=UtilityResult(call_id=call.call_id, error=error)))

    def _count_restart(self, reason: str) -> bool:
        """Whether there is another try."""
        self._reason = f"{reason}; it is being restarted"
        self._num_fruitless += 1
        if self._num_fruitless <= self._policy.max_restarts:
            _log.error("%s; %d requests wait for the next", self._reason, len(self._ledger))
            return True
        tried = f"{self._policy.max_restarts} restarts in a row brought no progress"
        self._give_up(EngineDeadError(f"{reason}; {tried}, so it isn't tried again"))
        return False

    def _give_up(self, death: EngineDeadError) -> None:
        if self._end is None:
            self._end = death
        self._woken.set()

    # Its successor.

    async def _restart(self, dead: MultiProcessClient) -> None:
        try:
            await self._start_again(dead)
        except Exception as error:  # whatever it is, nobody must wait for a restart that has ended
            _log.exception("restarting the engine core failed")
            self._give_up(EngineDeadError(f"restarting the engine core failed: {error}"))

    async def _start_again(self, dead: MultiProcessClient) -> None:
        await dead.process.exited(_LAST_RITES_S)
        await dead.stop(0)
        while True:
            await asyncio.sleep(self._policy.delay_s(self._num_fruitless))
            try:
                core = await self._start()
            except Exception as error:  # for want of threads or memory anything may be raised; it may be better soon
                if not isinstance(error, EngineError):
                    _log.exception("the engine core couldn't be started again")
                if not self._count_restart(str(error)):
                    return
            else:
                self._buried = None
                self._resume(core)
                return

    async def _start(self) -> MultiProcessClient:
        # The first try keeps what was planned, so that all that fitted fits again. If it fails, perhaps for want of
        # memory, what is there now decides.
        config = _with_plan(self.config, self.plan) if self._num_fruitless <= 1 else self.config
        self._process = process = self._process.successor(config)
        self._pulse = self._pulse_of(process, is_ready=False)
        try:
            return await process.connect(lambda stage: _log.debug("core: %s", stage))
        except BaseException:
            process.close()
            raise

    def _resume(self, core: MultiProcessClient) -> None:
        _log.warning("the engine core is back after its death; %d requests go on", len(self._ledger))
        self._core, self.plan = core, core.plan
        self._pulse.is_ready = True
        self._ready_s = time.monotonic()
        self._any_progress = False
        for method, args in self._journal:
            core.call(UtilityCall(call_id=next(self._replay_ids), method=method, args=args))
        self._calls = {call_id: (call, True) for call_id, (call, _) in self._calls.items()}
        for call, _ in self._calls.values():
            core.call(call)
        self._let_run(core)
        self._woken.set()

    def _let_run(self, core: MultiProcessClient) -> None:
        """Give the core those who may run and aren't in it."""
        group = self._suspects.group
        for entry in self._ledger:
            if not entry.is_in_core and (group is None or entry.request.request_id in group):
                self._continue(core, entry)

    def _continue(self, core: MultiProcessClient, entry: Entry) -> None:
        entry.is_in_core = True
        request, limit = entry.continued(), self.plan.max_model_len
        num_tokens = len(request.prompt_ids) + (request.params.max_tokens or 0)
        if limit < num_tokens <= self._max_model_len:
            error = f"the engine was restarted with less memory, where {num_tokens} tokens don't fit: {limit} do"
            self._tell(self._ledger.end(request.request_id, FinishReason.ERROR, error))
        else:
            core.add_request(request)

    # Signs of life.

    def _pulse_of(self, process: CoreProcess, *, is_ready: bool) -> Pulse:
        return Pulse(
            process.board,
            self._policy.limits,
            self._step_times,
            is_ready=is_ready,
            start_limit_s=self._start_limit_s,
        )

    async def _watch(self) -> None:
        last_s = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            now_s = time.monotonic()
            pulse, process = self._pulse, self._process
            pulse.look(now_s - last_s)
            last_s = now_s
            if pulse.verdict is not None and process.alive:
                _log.error("the engine core %s and is killed", pulse.verdict)
                process.kill_soon()


def _with_plan(config: EngineConfig, plan: RuntimePlan) -> EngineConfig:
    """The configuration whose plan can only be this one."""
    cache = dataclasses.replace(config.cache, num_gpu_blocks_override=plan.num_blocks)
    model = dataclasses.replace(config.model, max_model_len=plan.max_model_len)
    return dataclasses.replace(config, cache=cache, model=model)
