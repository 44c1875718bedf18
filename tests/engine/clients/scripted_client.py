"""A core that says what the test tells it to, and keeps what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from corefw.config.runtime_plan import RuntimePlan
from corefw.engine.clients.base import AsyncCoreClient
from corefw.errors import EngineDeadError, EngineError
from corefw.messages.control import UtilityCall
from corefw.messages.outputs import EngineCoreOutput, EngineCoreOutputs, FinishReason, SchedulerStats, UtilityResult
from corefw.messages.request import EngineCoreRequest
from tests.engine.fake_engine import config


class ScriptedClient(AsyncCoreClient):
    def __init__(self, num_blocks: int = 100, max_model_len: int = 64) -> None:
        self.config = config()
        self.plan = RuntimePlan(
            num_blocks=num_blocks,
            block_size=4,
            max_model_len=max_model_len,
            kv_cache_bytes=1000,
            attention_backend="none",
            layer_groups=(),
        )
        self.requests: list[str] = []
        self.aborted: list[str] = []
        self.calls: list[UtilityCall] = []
        self.num_stops = 0
        self.trouble_text: str | None = None
        self._said: asyncio.Queue[EngineCoreOutputs | EngineError] = asyncio.Queue()

    def say(self, *outputs: EngineCoreOutput, stats: SchedulerStats | None = None) -> None:
        self._said.put_nowait(EngineCoreOutputs(outputs=list(outputs), stats=stats))

    def end(self, request_id: str, stats: SchedulerStats | None = None) -> None:
        self.say(EngineCoreOutput(request_id=request_id, finish_reason=FinishReason.STOP), stats=stats)

    def answer(self, call_id: int, value: object = None, error: str | None = None) -> None:
        self._said.put_nowait(EngineCoreOutputs(utility=UtilityResult(call_id=call_id, value=value, error=error)))

    def die(self, reason: str) -> None:
        self._said.put_nowait(EngineDeadError(reason))

    def add_request(self, request: EngineCoreRequest) -> None:
        if request.extra.get("unsendable"):
            raise TypeError("not plain")
        self.requests.append(request.request_id)

    def abort(self, request_ids: Sequence[str]) -> None:
        self.aborted += request_ids

    def call(self, call: UtilityCall) -> None:
        self.calls.append(call)

    async def next_outputs(self) -> EngineCoreOutputs:
        said = await self._said.get()
        if isinstance(said, EngineError):
            raise said
        return said

    @property
    def alive(self) -> bool:
        return not self.num_stops

    @property
    def trouble(self) -> str | None:
        return self.trouble_text

    async def stop(self, timeout_s: float) -> None:
        del timeout_s
        self.num_stops += 1
