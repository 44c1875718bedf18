from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys

import pytest

from corefw.config.engine_config import ResolvedPlugin, ServerConfig
from corefw.engine.hub import EngineHub
from corefw.errors import EngineStartError
from corefw.server.api_channel import ServeOrder
from corefw.server.api_servers import ApiServers, part_of
from corefw.server.listener import listen_on
from tests.engine.clients.scripted_client import ScriptedClient
from tests.engine.fake_engine import config, plugins
from tests.engine.leftovers import children


def test_limits_of_the_whole_are_shared_out() -> None:
    whole = ServerConfig(api_server_count=3, max_concurrent_requests=10, max_body_bytes=1024, max_total_body_bytes=9000)
    parts = [part_of(whole, index) for index in range(3)]
    assert [part.max_concurrent_requests for part in parts] == [4, 4, 4]
    assert [part.total_body_bytes for part in parts] == [3000] * 3


def test_a_part_still_takes_the_largest_body() -> None:
    whole = ServerConfig(api_server_count=4, max_body_bytes=4096, max_total_body_bytes=4096)
    assert part_of(whole, 0).total_body_bytes == 4096


def test_one_of_them_logs_the_engine_s_figures() -> None:
    whole = ServerConfig(api_server_count=3)
    assert [part_of(whole, index).disable_log_stats for index in range(3)] == [False, True, True]


async def run_with(*more_plugins: ResolvedPlugin, drain_s: float = 0.0) -> None:
    """Two servers without a model, over an engine that says nothing."""
    listener, hub = listen_on(ServerConfig(port=0)), EngineHub(ScriptedClient())

    def order(index: int) -> ServeOrder:
        return ServeOrder(
            config=config(resolved=(*plugins().resolved(), *more_plugins)),
            server_config=ServerConfig(),
            index=index,
            url=listener.url,
            log_level="ERROR",
            search_path=tuple(sys.path),
            started_s=0.0,
        )

    try:
        await ApiServers(hub, order, listener, 2, drain_s).run()
    finally:
        await hub.close()
        listener.close()


async def test_one_that_cannot_start_ends_all_with_its_cause() -> None:
    before = children()
    foreign = ResolvedPlugin(group="schedulers", name="x", value="x:X", distribution="elsewhere", version="1")
    with pytest.raises(EngineStartError, match="elsewhere") as raised:
        await run_with(foreign)
    assert raised.value.kind == "plugin"
    assert children() <= before


async def test_a_signal_during_the_start_ends_it_and_leaves_nothing() -> None:
    before = children()
    asyncio.get_running_loop().call_later(0.3, os.kill, os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(30):  # who doesn't serve yet has nothing to drain
        await run_with(drain_s=3600)
    assert children() <= before


async def test_one_that_no_process_can_be_made_for_ends_all_with_its_cause() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = children()

    def allow_no_more_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))

    asyncio.get_running_loop().call_soon(allow_no_more_files)
    try:
        with pytest.raises(EngineStartError, match=r"API server 0 couldn't be started: .*Too many open files"):
            await run_with()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert children() <= before
