"""An endpoint that can't start is named, and none holds up the start or the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest
from starlette.routing import BaseRoute

from corefw.config.engine_config import ServerConfig
from corefw.errors import ConfigError, PluginError
from corefw.interfaces.endpoint import Endpoint
from corefw.interfaces.server_state import ServerState
from corefw.plugin_system.manager import PluginManager
from corefw.server.app import create_app
from corefw.server.endpoint_life import EndpointLife
from corefw.server.listener import listen_on
from corefw.server.run import serve
from corefw.testing.in_process_server import builtin_endpoints
from corefw.testing.pytest_plugin import RegisterPlugin
from tests.server.serving import make_state, scripted


class Plain(Endpoint):
    name = "plain"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def routes(self) -> Sequence[BaseRoute]:
        return ()

    async def startup(self, state: ServerState) -> None:
        self.calls.append("startup")

    async def shutdown(self) -> None:
        self.calls.append("shutdown")


class Raises(Plain):
    async def startup(self, state: ServerState) -> None:
        raise KeyError("table")


class Ends(Plain):
    async def startup(self, state: ServerState) -> None:
        raise SystemExit(3)


class Hangs(Plain):
    async def startup(self, state: ServerState) -> None:
        await asyncio.sleep(60)


class Refuses(Plain):
    async def startup(self, state: ServerState) -> None:
        raise ConfigError("set a folder")


class Stubborn(Plain):
    """Takes no for an answer once."""

    async def shutdown(self) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(60)


class FailsToStop(Plain):
    async def shutdown(self) -> None:
        raise KeyError("table")


def life(register: RegisterPlugin, *endpoints: Endpoint) -> EndpointLife:
    for number, endpoint in enumerate(endpoints):
        register("endpoint_plugins", type(endpoint).__name__, type(endpoint), distribution=f"acme-{number}")
    plugins = PluginManager.discover(allow=",".join(f"+{type(endpoint).__name__}" for endpoint in endpoints))
    plugins.load_all("endpoint_plugins")
    return EndpointLife(endpoints, make_state(scripted(), plugins=plugins))


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        (Raises, "KeyError: 'table'"),
        (Ends, "RuntimeError: SystemExit: 3"),
        (Hangs, "TimeoutError: it took longer than 0.01 s"),
    ],
)
async def test_one_that_cannot_start_is_named(register_plugin: RegisterPlugin, bad: type[Plain], cause: str) -> None:
    started = life(register_plugin, bad())
    whose = rf"^plugin '{bad.__name__}' \(endpoint_plugins\) of acme-0 1.0 failed at its start: {cause}$"
    with pytest.raises(PluginError, match=whose):
        await asyncio.wait_for(started.start(limit_s=0.01 if bad is Hangs else 10.0), 20)


async def test_what_one_says_to_the_operator_stays_as_it_is(register_plugin: RegisterPlugin) -> None:
    with pytest.raises(ConfigError, match=r"^set a folder$"):
        await life(register_plugin, Refuses()).start()


@pytest.mark.parametrize(
    ("bad", "told"), [(Stubborn, "Stubborn' (endpoint_plugins) of acme-0 1.0 didn't stop in 0.01 s"),
                      (FailsToStop, "FailsToStop' (endpoint_plugins) of acme-0 1.0 failed while it stopped")],
)  # fmt: skip
async def test_one_that_does_not_end_as_it_should_is_named_and_holds_nobody_up(
    register_plugin: RegisterPlugin, caplog: pytest.LogCaptureFixture, bad: type[Plain], told: str
) -> None:
    polite = Plain()
    started = life(register_plugin, bad(), polite)
    await started.start()
    with caplog.at_level(logging.WARNING):
        await asyncio.wait_for(started.stop(0.01), 10)
    assert polite.calls == ["startup", "shutdown"]
    assert told in caplog.text


async def test_a_server_whose_endpoint_cannot_start_ends_with_one_error_and_stops_its_engine(
    register_plugin: RegisterPlugin, capsys: pytest.CaptureFixture[str]
) -> None:
    register_plugin("endpoint_plugins", "raises", Raises, distribution="acme")
    plugins = PluginManager.discover(allow="+raises")
    plugins.load_all("endpoint_plugins")
    config = ServerConfig(port=0)
    listener = listen_on(config)
    calls: list[str] = []

    async def shut_down() -> None:
        calls.append("shut down")

    app = create_app(make_state(scripted(), config, plugins), [*builtin_endpoints(), Raises()])
    with pytest.raises(PluginError, match=r"^plugin 'raises' \(endpoint_plugins\) of acme 1.0 failed at its start"):
        await serve(app, listener, config, shut_down)
    listener.close()
    assert calls == ["shut down"]
    assert "http://" not in capsys.readouterr().out, "nothing is served"
