"""Servers of other protocols can't keep the server from ending."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from corefw.errors import PluginError
from corefw.interfaces.engine_client import EngineClient
from corefw.interfaces.hooks.http import ProtocolServer
from corefw.plugin_system.contributions import Contribution
from corefw.server.protocol_servers import ProtocolServers


class Polite(ProtocolServer):
    def __init__(self) -> None:
        self.calls: list[str] = []

    async def start(self, client: EngineClient) -> None:
        self.calls.append("start")

    async def stop(self) -> None:
        self.calls.append("stop")


class Stubborn(Polite):
    """Takes no for an answer once."""

    async def stop(self) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(60)


class Plain(Polite):
    def stop(self) -> Any:  # an author forgot to write async
        self.calls.append("stop")


class CantStart(Polite):
    async def start(self, client: EngineClient) -> None:
        raise OSError("the port is taken")


class NeverUp(Polite):
    async def start(self, client: EngineClient) -> None:
        await asyncio.sleep(60)


def servers(*values: ProtocolServer) -> ProtocolServers:
    contributions = [Contribution(type(v).__name__, "acme", "corefw_protocol_server", v) for v in values]
    return ProtocolServers(contributions, cast("Any", None))


async def test_one_that_cannot_start_is_named_and_those_before_it_are_stopped() -> None:
    first = Polite()
    group = servers(first, CantStart())
    with pytest.raises(PluginError, match="acme/CantStart can't start: OSError: the port is taken"):
        await group.start()
    await group.stop(1.0)
    assert first.calls == ["start", "stop"]


async def test_one_that_does_not_come_up_in_time_is_named() -> None:
    with pytest.raises(PluginError, match=r"acme/NeverUp can't start: TimeoutError: it took longer than 0.01 s"):
        await asyncio.wait_for(servers(NeverUp()).start(limit_s=0.01), 10)


@pytest.mark.parametrize(
    ("bad", "told"), [(Stubborn, "Stubborn didn't stop in 0.01 s"), (Plain, "Plain failed while it stopped")]
)
async def test_one_that_does_not_end_as_it_should_is_named_and_holds_nobody_up(
    bad: type[Polite], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    polite = Polite()
    group = servers(bad(), polite)
    await group.start()
    with caplog.at_level(logging.WARNING):
        await asyncio.wait_for(group.stop(0.01), 10)
    assert polite.calls == ["start", "stop"]
    assert told in caplog.text
