"""Cores without processes, for tests of who supervises them: a test says what they send and when they die."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from corefw.config.engine_config import EngineConfig
from corefw.config.runtime_plan import RuntimePlan
from corefw.engine.step_board import Doing
from corefw.errors import EngineDeadError, EngineStartError
from corefw.messages.codec import Codec
from corefw.messages.control import UtilityCall
from corefw.messages.outputs import EngineCoreOutput, EngineCoreOutputs, FinishReason
from corefw.messages.request import EngineCoreRequest
from tests.engine.fake_engine import config


def plan(max_model_len: int = 512, num_blocks: int = 64) -> RuntimePlan:
    return RuntimePlan(
        num_blocks=num_blocks,
        block_size=4,
        max_model_len=max_model_len,
        kv_cache_bytes=1,
        attention_backend="none",
        layer_groups=((),),
    )


class ScriptedBoard:
    """Beats as long as nobody stops it."""

    def __init__(self) -> None:
        self.beats = 0
        self.is_beating = True
        self.ids: Sequence[str] = ()
        self.num_ended = self.num_step_tokens = self.num_ended_tokens = 0
        self.is_stepping = False
        self.doing = Doing.WAITING
        self.num_turns = 0

    @property
    def num_beats(self) -> int:
        self.beats += self.is_beating
        return self.beats

    def running_ids(self) -> Sequence[str]:
        return self.ids


class ScriptedCores:
    """All cores of a test, in the order in which they were started.

    Attributes:
        plans: of the next ones; the last one is everybody's.
        start_errors: of the next starts; None for one that succeeds.
        configs: what each was told to build.
        gate: cleared, a start takes until it is set.
    """

    def __init__(self) -> None:
        self.cores: list[ScriptedCore] = []
        self.plans = [plan()]
        self.start_errors: list[str | None] = []
        self.configs: list[EngineConfig] = []
        self.gate = asyncio.Event()
        self.gate.set()

    @property
    def latest(self) -> ScriptedCore:
        return self.cores[-1]

    def make(self, settings: EngineConfig | None = None) -> ScriptedCore:
        settings = settings or config()
        self.configs.append(settings)
        wanted = self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]
        self.cores.append(ScriptedCore(self, settings, wanted))
        return self.latest


class ScriptedProcess:
    """Of one core."""

    def __init__(self, cores: ScriptedCores, core: ScriptedCore | None) -> None:
        self._cores = cores
        self._core = core
        self.pid = -1
        self.alive = True
        self.spawned_s = time.monotonic()
        self.board = ScriptedBoard()

    def successor(self, settings: EngineConfig) -> ScriptedProcess:
        self._cores.configs.append(settings)
        return ScriptedProcess(self._cores, None)

    async def connect(self, on_progress: Callable[[str], None]) -> ScriptedCore:
        on_progress("starting")
        await self._cores.gate.wait()
        error = self._cores.start_errors.pop(0) if self._cores.start_errors else None
        if error is not None:
            raise EngineStartError(error)
        core = self._cores.make(self._cores.configs.pop())
        core.process = self
        return core

    async def exited(self, timeout_s: float) -> bool:
        del timeout_s
        return True

    def close(self) -> None:
        self.alive = False


class ScriptedCore:
    """Keeps what it gets and says what it is told to say."""

    def __init__(self, cores: ScriptedCores, settings: EngineConfig, wanted: RuntimePlan) -> None:
        self.config = settings
        self.plan = wanted
        self.process = ScriptedProcess(cores, self)
        self.requests: list[EngineCoreRequest] = []
        self.aborted: list[str] = []
        self.calls: list[UtilityCall] = []
        self.order: list[str] = []
        self.is_stopped = False
        self._codec = Codec(EngineCoreRequest)
        self._arrived: asyncio.Queue[EngineCoreOutputs | EngineDeadError] = asyncio.Queue()

    @property
    def alive(self) -> bool:
        return self.process.alive

    @property
    def ids(self) -> list[str]:
        return [request.request_id for request in self.requests]

    def add_request(self, request: EngineCoreRequest) -> None:
        self._codec.encode(request)
        self.requests.append(request)
        self.order.append(request.request_id)

    def abort(self, request_ids: Sequence[str]) -> None:
        self.aborted += request_ids

    def call(self, call: UtilityCall) -> None:
        self.calls.append(call)
        self.order.append(call.method)

    async def next_outputs(self) -> EngineCoreOutputs:
        news = await self._arrived.get()
        if isinstance(news, EngineDeadError):
            raise news
        return news

    def deliver(self, outputs: EngineCoreOutputs) -> None:
        self._arrived.put_nowait(outputs)

    def say(self, request_id: str, *token_ids: int, reason: FinishReason | None = None, **fields: object) -> None:
        """News of one request."""
        output = EngineCoreOutput(
            request_id=request_id,
            new_token_ids=list(token_ids),
            finish_reason=reason,
            **fields,  # type: ignore[arg-type]
        )
        self.deliver(EngineCoreOutputs(outputs=[output]))

    def die(self, *running: str, reason: str = "was killed by signal 9 (SIGKILL)") -> None:
        """While these were in a step; without any, between steps."""
        self.process.board.ids = running
        self.process.alive = False
        self._arrived.put_nowait(EngineDeadError(f"the engine core {reason}"))

    async def stop(self, timeout_s: float) -> None:
        del timeout_s
        self.is_stopped = True
        self.process.alive = False
