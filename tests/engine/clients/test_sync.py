from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from corefw.engine.clients.base import AsyncCoreClient
from corefw.engine.clients.sync import SyncClient
from corefw.engine.process import CoreProcess
from corefw.errors import EngineDeadError, EngineStartError, RequestError
from corefw.messages.outputs import EngineCoreOutput, FinishReason
from tests.engine.clients.scripted_client import ScriptedClient
from tests.engine.fake_engine import config, expected, request
from tests.engine.leftovers import exists, nothing_left, short_directory, wait_until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def sockets_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with short_directory(monkeypatch) as directory:
        yield directory


class Scripted:
    """A core that says what the test wants, and the client in front of it."""

    def __init__(self) -> None:
        self.client = SyncClient(self._connect)

    async def _connect(self) -> AsyncCoreClient:
        self.loop = asyncio.get_running_loop()
        self.core = ScriptedClient()
        return self.core

    def soon(self, method: object, *args: object) -> None:
        self.loop.call_soon_threadsafe(method, *args)  # type: ignore[arg-type]


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    made = Scripted()
    yield made
    made.client.shutdown()


def outputs_of(client: SyncClient) -> list[EngineCoreOutput]:
    found: list[EngineCoreOutput] = []
    while client.has_work():
        found += client.step().outputs
    return found


def test_a_core_in_a_process_is_stepped_called_and_stopped(sockets_in: Path) -> None:
    with nothing_left(sockets_in):
        process = CoreProcess.spawn(preload=())
        process.configure(config())
        client = SyncClient(process.connect)
        assert not client.has_work()
        for name in "abc":
            client.add_request(request(name))
        found = outputs_of(client)
        for name in "abc":
            tokens = [t for output in found if output.request_id == name for t in output.new_token_ids]
            assert tokens == expected(name)
        assert client.call("reset_prefix_cache") is True
        with pytest.raises(RequestError, match="has no call 'no'"):
            client.call("no")
        assert client.take_events() == []
        client.add_request(request("long", 1000, delay_s=0.02))
        client.step()
        client.abort(["long"])
        assert outputs_of(client)[-1].finish_reason is FinishReason.ABORT
        client.shutdown()
        client.shutdown()
        assert process.exit_text() == "exited with status 0"


def test_what_cant_be_sent_comes_back_with_the_reason(scripted: Scripted) -> None:
    scripted.client.add_request(request("a", unsendable=True))
    (output,) = outputs_of(scripted.client)
    assert (output.finish_reason, output.error) == (FinishReason.ERROR, "the request can't be sent: not plain")
    with pytest.raises(RequestError, match=r"p\.f can't be called so: the list of its arguments"):
        scripted.client.call("p.f", [object()])


def test_a_dead_core_ends_what_waits_and_all_that_follows(scripted: Scripted) -> None:
    client = scripted.client
    client.add_request(request("a"))
    told: list[str] = []

    def call() -> None:
        try:
            client.call("stats")
        except EngineDeadError as error:
            told.append(str(error))

    waiting = threading.Thread(target=call)
    waiting.start()
    assert wait_until(lambda: bool(scripted.core.calls), 5)
    scripted.soon(scripted.core.die, "it fell")
    with pytest.raises(EngineDeadError, match="it fell"):
        outputs_of(client)
    waiting.join(5)
    assert told == ["it fell"]
    assert not client.has_work()
    for again in (client.step, lambda: client.add_request(request("b")), lambda: client.call("stats")):
        with pytest.raises(EngineDeadError, match="it fell"):
            again()


def test_a_step_without_news_returns_so_that_ctrl_c_is_seen(scripted: Scripted) -> None:
    scripted.client.add_request(request("a"))
    assert scripted.client.step().outputs == []
    assert scripted.client.has_work()
    scripted.soon(scripted.core.end, "a")
    assert [output.request_id for output in outputs_of(scripted.client)] == ["a"]


def test_a_core_that_cant_start_says_why_and_leaves_nothing(sockets_in: Path) -> None:
    with nothing_left(sockets_in):
        process = CoreProcess.spawn(preload=())
        process.configure(config(model="fake:error"))
        with pytest.raises(EngineStartError, match="told to fail"):
            SyncClient(process.connect)


def test_ctrl_c_during_the_start_leaves_nothing(sockets_in: Path) -> None:
    with nothing_left(sockets_in):
        process = CoreProcess.spawn(preload=())
        process.configure(config(model="fake:slow"))

        async def connect() -> AsyncCoreClient:
            return await process.connect(lambda _: os.kill(os.getpid(), signal.SIGINT))

        with pytest.raises(KeyboardInterrupt):
            SyncClient(connect)
        assert not process.alive


@pytest.mark.parametrize(
    ("way", "number", "told"),
    [
        ("goes on", signal.SIGKILL, ""),
        ("goes on", signal.SIGINT, ""),
        ("raises", None, ""),
        ("forgets", None, "exited with status 0"),
        ("forks", None, "is still running"),
    ],
)
def test_a_program_ends_and_its_core_with_it(
    way: str, number: signal.Signals | None, told: str, sockets_in: Path
) -> None:
    command = [sys.executable, "-m", "tests.engine.sync_program", way]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "TMPDIR": str(sockets_in)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, process_group=0, **streams) as program:  # type: ignore[call-overload]
        core = int(program.stdout.readline())
        if number is not None:
            assert exists(core)
            os.killpg(program.pid, number) if number == signal.SIGINT else program.send_signal(number)
        out, err = program.communicate(timeout=30)
    assert out.strip() == told, err
    assert wait_until(lambda: not exists(core), 5)
    assert list(sockets_in.iterdir()) == []
    assert ("LookupError" in err) == (way == "raises")
    assert "Exception ignored" not in err
