"""Several engines, each with the whole model, behind the face of one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from corefw.engine.clients.balancer import Balancer
from corefw.engine.clients.base import AsyncCoreClient, read_until_death
from corefw.engine.clients.merged_answers import merged_plan, merged_result, merged_stats
from corefw.engine.coordinator import Coordinator
from corefw.errors import EngineDeadError
from corefw.messages.outputs import SchedulerStats, UtilityResult

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.messages.control import UtilityCall
    from corefw.messages.outputs import EngineCoreOutputs
    from corefw.messages.request import EngineCoreRequest

__all__ = ["DataParallelClient"]


class DataParallelClient(AsyncCoreClient):
    """Gives each request to one engine, and calls to all of them. One that is gone for good ends the whole.

    Made while the event loop runs.

    Args:
        config: of the whole.
        engines: connected; owned by this client from now on.
    """

    def __init__(self, config: EngineConfig, engines: Sequence[AsyncCoreClient]) -> None:
        self.config = config
        self._engines = tuple(engines)
        self._make_plan()
        self._balancer = Balancer(len(engines), self.plan.block_size)
        self._coordinator = Coordinator(len(engines))
        self._homes: dict[str, int] = {}
        self._stats = [SchedulerStats()] * len(engines)
        self._calls: dict[int, _PendingCall] = {}
        self._arrived: asyncio.Queue[EngineCoreOutputs | EngineDeadError] = asyncio.Queue()
        self._death: EngineDeadError | None = None
        self._readers = [
            asyncio.create_task(self._read(index), name=f"engine-{index}") for index in range(len(engines))
        ]

    @property
    def alive(self) -> bool:
        """Whether every engine exists."""
        return all(engine.alive for engine in self._engines)

    @property
    def trouble(self) -> str | None:
        """Of the first engine; None as long as one can be relied on."""
        troubles = [engine.trouble for engine in self._engines]
        return None if None in troubles else troubles[0]

    def add_request(self, request: EngineCoreRequest) -> None:
        away = {index for index, engine in enumerate(self._engines) if engine.trouble is not None}
        home = self._balancer.place(request, away)
        try:
            self._engines[home].add_request(request)
        except BaseException:
            self._balancer.ended(home)
            raise
        self._homes[request.request_id] = home

    def abort(self, request_ids: Sequence[str]) -> None:
        by_home: dict[int, list[str]] = {}
        for request_id in request_ids:
            if (home := self._homes.get(request_id)) is not None:
                by_home.setdefault(home, []).append(request_id)
        for home, ids in by_home.items():
            self._engines[home].abort(ids)

    def call(self, call: UtilityCall) -> None:
        self._calls[call.call_id] = _PendingCall(call.method, len(self._engines))
        for engine in self._engines:
            engine.call(call)

    async def next_outputs(self) -> EngineCoreOutputs:
        if self._death is not None:
            raise self._death
        news = await self._arrived.get()
        if isinstance(news, EngineDeadError):
            self._death = news
            raise news
        return news

    async def stop(self, timeout_s: float) -> None:
        await asyncio.gather(*(engine.stop(timeout_s) for engine in self._engines))
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def _read(self, index: int) -> None:
        def take(outputs: EngineCoreOutputs) -> None:
            self._arrived.put_nowait(self._take(index, outputs))

        death = await read_until_death(self._engines[index], take)
        self._arrived.put_nowait(EngineDeadError(f"engine {index} of {len(self._engines)}: {death}"))

    def _make_plan(self) -> None:
        self._plans = [engine.plan for engine in self._engines]
        self.plan = merged_plan(self._plans)

    def _take(self, index: int, outputs: EngineCoreOutputs) -> EngineCoreOutputs:
        for output in outputs.outputs:
            if output.finish_reason is not None and self._homes.pop(output.request_id, None) is not None:
                self._balancer.ended(index)
        if self._engines[index].plan is not self._plans[index]:  # it was restarted
            self._make_plan()
        if outputs.wave is not None:
            for other, order in self._coordinator.take(index, outputs.wave):
                self._engines[other].start_wave(order)
        stats = outputs.stats
        if stats is not None:
            self._balancer.report(index, stats)
            self._stats[index] = stats
            stats = merged_stats(self._stats)
        utility = None if outputs.utility is None else self._answered(index, outputs.utility)
        return msgspec.structs.replace(outputs, stats=stats, utility=utility)

    def _answered(self, index: int, result: UtilityResult) -> UtilityResult | None:
        """The answer once everybody has given theirs."""
        call = self._calls[result.call_id]
        call.results[index] = result
        if len(call.results) < call.num_engines:
            return None
        del self._calls[result.call_id]
        return merged_result(call.method, [call.results[i] for i in range(call.num_engines)])


class _PendingCall:
    """A call that not every engine has answered."""

    def __init__(self, method: str, num_engines: int) -> None:
        self.method = method
        self.num_engines = num_engines
        self.results: dict[int, UtilityResult] = {}
