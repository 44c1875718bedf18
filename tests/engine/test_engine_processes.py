from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corefw.config.device_ids import DeviceIds
from corefw.engine.async_engine import AsyncEngine
from corefw.engine.engine_processes import EngineProcesses
from corefw.errors import ConfigError, EngineStartError
from tests.engine.fake_engine import config, expected, request
from tests.engine.leftovers import nothing_left, short_directory


@pytest.fixture
async def two(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EngineProcesses]:
    with short_directory(monkeypatch) as directory, nothing_left(Path(directory)):
        made = EngineProcesses.spawn(2)
        yield made
        made.close()


async def test_two_engines_share_the_requests_and_stop_together(two: EngineProcesses) -> None:
    two.configure(config(data_parallel_size=2), None, log_level="WARNING")
    engine = AsyncEngine(await two.connect())
    streams = {name: engine.submit(request(name)) for name in "abcd"}
    for name, stream in streams.items():
        assert [token async for output in stream for token in output.new_token_ids] == expected(name)
    async with asyncio.timeout(10):
        while [one.num_generation_tokens for one in engine.stats.engines] != [10, 10]:  # noqa: ASYNC110 - has no event
            await asyncio.sleep(0.01)
    assert await engine.call("reset_prefix_cache") is True
    await engine.shutdown()


async def test_one_that_cannot_start_ends_the_others(two: EngineProcesses) -> None:
    two.configure(config(data_parallel_size=2, model="fake:error"), None, log_level="ERROR")
    with pytest.raises(EngineStartError, match="told to fail"):
        await two.connect()


async def test_engines_get_devices_of_their_own_or_none_starts(
    two: EngineProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    devices = DeviceIds.from_environment("CUDA_VISIBLE_DEVICES", 4)
    with pytest.raises(ConfigError):
        two.configure(config(data_parallel_size=2), devices, log_level="ERROR")


async def test_another_number_than_was_expected_is_started(two: EngineProcesses) -> None:
    two.configure(config(), None, log_level="WARNING")
    engine = AsyncEngine(await two.connect())
    assert [token async for output in engine.submit(request("a")) for token in output.new_token_ids] == expected("a")
    assert engine.stats.engines == ()
    await engine.shutdown()
