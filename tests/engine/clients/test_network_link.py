"""A core that is reached over a network: here over the loopback interface."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import zmq

from corefw.engine.async_engine import AsyncEngine
from corefw.engine.clients import link
from corefw.engine.core_child import CoreChild
from corefw.engine.process import CoreProcess
from corefw.engine.startup import AddressesWanted, ControlChannel
from corefw.engine.supervisor import SupervisedClient
from corefw.errors import EngineStartError
from corefw.interfaces.core_launcher import LaunchedCore
from corefw.messages.control import OutputKind
from tests.engine.fake_engine import config, expected, request
from tests.engine.leftovers import nothing_left, short_directory


class NetworkChild(CoreChild):
    """Takes this machine for another one."""

    host = "127.0.0.1"


class UnreachedChild(CoreChild):
    """Has another address than it would need."""

    host = "192.0.2.1"


class SilentCore(LaunchedCore):
    """Asks where to connect, and doesn't."""

    host = "127.0.0.1"
    pid = 0

    def __init__(self, board_fd: int) -> None:
        self._ended = False
        self.control, self._there = socket.socketpair()
        self.exit_fd = os.eventfd(0)
        ControlChannel(self._there).send(AddressesWanted())

    def exit_text(self) -> str | None:
        return "was killed" if self._ended else None

    def kill(self) -> None:
        self._ended = True
        os.eventfd_write(self.exit_fd, 1)

    def close(self) -> None:
        for each in (self.control, self._there):
            each.close()
        os.close(self.exit_fd)


@pytest.fixture
async def process(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CoreProcess]:
    with short_directory(monkeypatch) as directory, nothing_left(Path(directory)):
        made = CoreProcess(partial(NetworkChild.spawn, preload=()))
        yield made
        made.close()


def socket_folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).iterdir())


async def tokens(engine: AsyncEngine, name: str, num_tokens: int = 5, **extra: Any) -> list[int]:
    return [t async for output in engine.submit(request(name, num_tokens, **extra)) for t in output.new_token_ids]


async def test_whoever_has_no_key_is_not_heard_and_the_core_goes_on_and_comes_back(process: CoreProcess) -> None:
    process.configure(config(), log_level="ERROR")
    engine = AsyncEngine(SupervisedClient(await process.connect()))
    assert await tokens(engine, "a") == expected("a")
    assert socket_folders() == []
    outputs = cast("Any", process)._link._outputs.getsockopt_string(zmq.LAST_ENDPOINT)
    host, port = outputs.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port))) as scanner:
        scanner.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
        stranger.linger = 0
        stranger.connect(outputs)
        stranger.send_multipart([OutputKind.DEAD, b"so says a stranger"])
        assert await tokens(engine, "b", delay_s=0.05) == expected("b")
    assert process.alive
    os.kill(process.pid, signal.SIGKILL)
    assert await tokens(engine, "c") == expected("c")
    await engine.shutdown()


async def test_an_address_that_is_not_this_machines_stops_the_start() -> None:
    process = CoreProcess(partial(UnreachedChild.spawn, preload=()))
    process.configure(config(), log_level="ERROR")
    with pytest.raises(EngineStartError, match=r"can't listen at 192\.0\.2\.1"):
        await process.connect()


async def test_a_core_that_does_not_connect_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_REACH_MS", 300)
    process = CoreProcess(SilentCore)
    process.configure(config(), log_level="ERROR")
    with pytest.raises(EngineStartError, match=r"didn't connect to tcp://127\.0\.0\.1:\d+ and tcp://.* 0\.3 s"):
        await process.connect()
