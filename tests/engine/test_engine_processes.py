from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corefw.builtins.platforms.cpu import CpuPlatform
from corefw.config.device_ids import DeviceIds
from corefw.config.engine_config import EngineConfig, ParallelConfig
from corefw.engine.async_engine import AsyncEngine
from corefw.engine.child_launcher import ChildLauncher
from corefw.engine.engine_processes import EngineProcesses, core_launcher
from corefw.errors import ConfigError, EngineStartError, PluginError
from corefw.plugin_system.manager import PluginManager
from corefw.testing.registration import registered
from tests.engine.fake_engine import config, expected, plugins, request
from tests.engine.leftovers import nothing_left, short_directory


@pytest.fixture
async def two(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EngineProcesses]:
    with short_directory(monkeypatch) as directory, nothing_left(Path(directory)):
        made = EngineProcesses.spawn(ParallelConfig(data_parallel_size=2))
        yield made
        made.close()


def configure(processes: EngineProcesses, wanted: EngineConfig) -> None:
    processes.configure(wanted, ChildLauncher(wanted, plugins()), log_level="WARNING")


async def test_two_engines_share_the_requests_and_stop_together(two: EngineProcesses) -> None:
    configure(two, config(data_parallel_size=2))
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
    configure(two, config(data_parallel_size=2, model="fake:error"))
    with pytest.raises(EngineStartError, match="told to fail"):
        await two.connect()


class Boards(CpuPlatform):
    """A platform whose devices have numbers."""

    name = "boards"

    def device_ids(self) -> DeviceIds:
        return DeviceIds.from_environment("BOARDS_VISIBLE", 4)


def test_engines_get_devices_of_their_own_or_none_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with registered("platform_plugins", "boards", Boards):
        known = PluginManager.discover()
        monkeypatch.setenv("BOARDS_VISIBLE", "3,1")
        wanted = dataclasses.replace(config(data_parallel_size=2), platform="boards")
        environments = ChildLauncher(wanted, known)._environments
        assert [each and each["BOARDS_VISIBLE"] for each in environments] == ["3", "1"]
        monkeypatch.setenv("BOARDS_VISIBLE", "0")
        with pytest.raises(ConfigError):
            core_launcher(wanted, known)


def test_a_launcher_is_found_by_its_name_or_its_class() -> None:
    path = "corefw.engine.child_launcher:ChildLauncher"
    for name in (None, "mp", path):
        assert isinstance(core_launcher(config(data_parallel_backend=name), plugins()), ChildLauncher)
    with pytest.raises(PluginError, match=r"--data-parallel-backend.*mp"):
        core_launcher(config(data_parallel_backend="mpp"), plugins())


async def test_another_number_than_was_expected_is_started(two: EngineProcesses) -> None:
    configure(two, config())
    engine = AsyncEngine(await two.connect())
    assert [token async for output in engine.submit(request("a")) for token in output.new_token_ids] == expected("a")
    assert engine.stats.engines == ()
    await engine.shutdown()
