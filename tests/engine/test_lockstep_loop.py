"""Engines that compute together: as many steps in one as in the other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from corefw.config.engine_config import ParallelConfig
from corefw.engine.async_engine import AsyncEngine
from corefw.engine.child_launcher import ChildLauncher
from corefw.engine.core import EngineCore
from corefw.engine.engine_processes import EngineProcesses
from corefw.engine.lockstep_loop import LockstepLoop
from corefw.errors import ConfigError
from corefw.messages.control import WaveOrder
from corefw.messages.outputs import EngineCoreOutputs
from tests.engine.fake_engine import config, expected, plugins, request
from tests.engine.leftovers import nothing_left, short_directory

ROUND = 16


class Driven:
    """A loop whose coordinator is the test: it answers each report with the next of its orders."""

    def __init__(self, *goes_on: bool) -> None:
        self.core = EngineCore(config(lockstep=True), plugins())
        self.loop = LockstepLoop(self.core, self.take)
        self.goes_on = iter(goes_on)
        self.sent: list[EngineCoreOutputs] = []

    def take(self, outputs: EngineCoreOutputs) -> None:
        self.sent.append(outputs)
        if outputs.wave is None or not outputs.wave.num_steps:
            return
        goes_on = next(self.goes_on)
        self.loop.start_wave(WaveOrder(wave=outputs.wave.wave, goes_on=goes_on))
        if not goes_on:
            self.loop.stop()

    def reports(self) -> list[tuple[int, int, bool]]:
        waves = [outputs.wave for outputs in self.sent if outputs.wave is not None]
        return [(wave.wave, wave.num_steps, wave.has_work) for wave in waves]


def test_an_idle_engine_steps_as_long_as_it_is_told_to() -> None:
    driven = Driven(True, False)
    driven.loop.start_wave(WaveOrder(wave=0))
    driven.loop.run()
    assert driven.reports() == [(0, ROUND, False), (0, 2 * ROUND, False)]


def test_an_engine_that_gets_work_begins_a_wave_and_ends_it_with_the_others() -> None:
    driven = Driven(True, False)
    driven.loop.add_request(request("a", 20))
    driven.loop.run()
    assert driven.reports() == [(0, 0, True), (0, ROUND, True), (0, 2 * ROUND, False)]
    assert [t for sent in driven.sent for output in sent.outputs for t in output.new_token_ids] == expected("a", 20)


def test_an_order_of_a_wave_that_is_over_is_nothing() -> None:
    driven = Driven(False)
    driven.loop.start_wave(WaveOrder(wave=7))
    driven.loop.start_wave(WaveOrder(wave=0, goes_on=False))
    driven.loop.add_request(request("a", 2))
    driven.loop.run()
    assert driven.reports() == [(0, 0, True), (0, ROUND, False)]


@asynccontextmanager
async def two_engines() -> AsyncIterator[AsyncEngine]:
    with pytest.MonkeyPatch.context() as patch, short_directory(patch) as directory, nothing_left(Path(directory)):
        processes = EngineProcesses.spawn(ParallelConfig(data_parallel_size=2))
        wanted = config(data_parallel_size=2, lockstep=True)
        processes.configure(wanted, ChildLauncher(wanted, plugins()), log_level="DEBUG")
        engine = AsyncEngine(await processes.connect())
        yield engine
        await engine.shutdown()
        processes.close()


async def test_an_idle_engine_computes_for_nobody_while_another_works(capfd: pytest.CaptureFixture[str]) -> None:
    log = ""

    async def waves_over(two: AsyncEngine, num_rounds: int) -> None:
        nonlocal log
        totals: list[int] = []
        async with asyncio.timeout(20):
            while totals != [num_rounds * ROUND] * 2:
                await asyncio.sleep(0.05)
                log += capfd.readouterr().err
                totals = [one.num_steps + num_dummies(log, index) for index, one in enumerate(two.stats.engines)]

    async with two_engines() as two:
        # One after the other: the second begins a wave of its own.
        for name, num_tokens, num_rounds in (("a", 40, 3), ("b", 3, 4)):
            stream = two.submit(request(name, num_tokens))
            assert [token async for output in stream for token in output.new_token_ids] == expected(name, num_tokens)
            await waves_over(two, num_rounds)
        await asyncio.sleep(0.3)  # nobody has work, so nothing is computed
        await waves_over(two, num_rounds)
    assert min(num_dummies(log, index) for index in (0, 1)) > 0


def num_dummies(log: str, index: int) -> int:
    return len(re.findall(rf"core {index} a dummy step", log))


async def test_many_waves_with_overlapping_requests_lose_nothing() -> None:
    async def one(two: AsyncEngine, number: int) -> None:
        await asyncio.sleep(0.03 * (number % 7))
        stream = two.submit(request(f"r{number}", 1 + number))
        tokens = [token async for output in stream for token in output.new_token_ids]
        assert tokens == expected(f"r{number}", 1 + number)

    async with two_engines() as two:
        for batch in (range(8), range(8, 24)):
            await asyncio.wait_for(asyncio.gather(*(one(two, number) for number in batch)), 30)


def test_a_server_of_its_own_cannot_keep_step_with_others() -> None:
    processes = EngineProcesses()
    wanted = config(data_parallel_size=2, data_parallel_rank=0, lockstep=True)
    with pytest.raises(ConfigError, match="leave out --data-parallel-rank"):
        processes.configure(wanted, ChildLauncher(wanted, plugins()), log_level="ERROR")
