from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from corefw.config.engine_config import EngineConfig
from corefw.engine.async_engine import AsyncEngine
from corefw.engine.clients import hub_client
from corefw.engine.clients.hub_client import HubClient
from corefw.engine.hub import EngineHub, FrontEndLink
from corefw.engine.hub_process import HubProcess
from corefw.engine.startup import Addresses, ControlChannel
from corefw.errors import EngineDeadError, EngineError
from corefw.messages.outputs import EngineCoreOutput, FinishReason, SchedulerStats
from tests.engine.clients.scripted_client import ScriptedClient
from tests.engine.fake_engine import config, request
from tests.engine.leftovers import nothing_left, short_directory


@pytest.fixture
def core() -> ScriptedClient:
    return ScriptedClient()


@pytest.fixture
async def hub(core: ScriptedClient, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EngineHub]:
    with short_directory(monkeypatch) as directory, nothing_left(Path(directory)):
        made = EngineHub(core)
        yield made
        await made.close()
        await asyncio.get_running_loop().shutdown_default_executor()


@asynccontextmanager
async def front_end(hub: EngineHub) -> AsyncIterator[tuple[AsyncEngine, FrontEndLink]]:
    """As one in another process."""
    ours, theirs = socket.socketpair()
    process = HubProcess(theirs, os.getpid())
    link, client = await asyncio.gather(hub.attach(ours), process.connect(config()))
    engine = AsyncEngine(client, grace_s=0.2)
    try:
        yield engine, link
    finally:
        await engine.shutdown()
        await hub.detach(link)
        ours.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.005)


async def test_a_hub_that_has_gone_is_told_as_such(
    hub: EngineHub, core: ScriptedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[HubProcess] = []
    connect = HubProcess.connect

    async def connected(process: HubProcess, config: EngineConfig) -> HubClient:
        made.append(process)
        return await connect(process, config)

    monkeypatch.setattr(HubProcess, "connect", connected)
    async with front_end(hub) as (one, _):
        waiting = one.submit(request("a"))
        await until(lambda: core.requests)
        made[0].kill()  # which wakes who waits for it as its end does
        with pytest.raises(EngineDeadError, match="the engine core is no longer there"):
            await anext(waiting)


async def test_each_front_end_gets_its_own_outputs(hub: EngineHub, core: ScriptedClient) -> None:
    async with front_end(hub) as (one, _), front_end(hub) as (two, _):
        assert one.plan == core.plan
        streams = [one.submit(request("a")), two.submit(request("b"))]
        await until(lambda: sorted(core.requests) == ["a", "b"])
        core.say(*(EngineCoreOutput(request_id=name, new_token_ids=[ord(name)]) for name in "ab"))
        core.end("a")
        core.end("b")
        for stream, name in zip(streams, "ab", strict=True):
            assert [output.new_token_ids async for output in stream] == [[ord(name)], []]


async def test_an_answer_goes_to_who_called_though_all_number_their_calls_alike(
    hub: EngineHub, core: ScriptedClient
) -> None:
    async with front_end(hub) as (one, _), front_end(hub) as (two, _):
        first = asyncio.create_task(one.call("stats"))
        await until(lambda: len(core.calls) == 1)
        second = asyncio.create_task(two.call("stats"))
        await until(lambda: len(core.calls) == 2)
        core.answer(core.calls[1].call_id, "second")
        core.answer(core.calls[0].call_id, "first")
        assert await asyncio.gather(first, second) == ["first", "second"]


async def test_what_a_lost_front_end_had_asked_for_is_aborted(hub: EngineHub, core: ScriptedClient) -> None:
    async with front_end(hub) as (one, link), front_end(hub) as (two, _):
        one.submit(request("a"))
        kept = two.submit(request("b"))
        await until(lambda: len(core.requests) == 2)
        await hub.detach(link)
        assert core.aborted == ["a"]
        core.end("a")
        core.end("b")
        assert (await anext(kept)).finish_reason is FinishReason.STOP


async def test_a_front_end_can_only_abort_its_own(hub: EngineHub, core: ScriptedClient) -> None:
    async with front_end(hub) as (one, _), front_end(hub) as (_, link):
        stream = one.submit(request("a"))
        await until(lambda: core.requests == ["a"])
        hub.abort(link, ["a"])
        assert core.aborted == []
        stream.abort()
        await until(lambda: core.aborted == ["a"])


async def test_every_front_end_learns_when_the_engine_falls_idle(hub: EngineHub, core: ScriptedClient) -> None:
    async with front_end(hub) as (one, _), front_end(hub) as (two, _):
        core.say(stats=SchedulerStats(num_running=3))
        await until(lambda: one.stats.num_running == two.stats.num_running == 3)
        core.say(stats=SchedulerStats(num_running=0, num_steps=9))
        await until(lambda: one.stats.num_steps == two.stats.num_steps == 9)


async def test_a_request_that_the_engine_cannot_take_fails_alone(hub: EngineHub, core: ScriptedClient) -> None:
    async with front_end(hub) as (one, _):
        stream = one.submit(request("a", unsendable=True))
        output = await anext(stream)
        assert (output.finish_reason, core.requests) == (FinishReason.ERROR, [])
        assert "not plain" in (output.error or "")


async def test_trouble_of_the_engine_is_every_front_end_s(hub: EngineHub, core: ScriptedClient) -> None:
    core.trouble_text = "it is being restarted"
    async with front_end(hub) as (one, _):
        await until(lambda: one.trouble == "it is being restarted")
        core.trouble_text = None
        await until(lambda: one.trouble is None)


async def test_the_engine_s_death_reaches_every_front_end_also_one_that_comes_later(
    hub: EngineHub, core: ScriptedClient
) -> None:
    async with front_end(hub) as (one, _):
        stream = one.submit(request("a"))
        await until(lambda: core.requests)
        core.die("it burned")
        with pytest.raises(EngineDeadError, match="it burned"):
            await anext(stream)
        assert "it burned" in str(await hub.death)
        async with front_end(hub) as (late, _):
            await until(lambda: late.death is not None)


async def test_a_front_end_that_dies_before_it_is_connected_is_nobody(hub: EngineHub) -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(EngineError, match="before it was connected"):
        await hub.attach(ours)


async def test_a_front_end_that_comes_later_knows_the_figures_of_an_idle_engine(
    hub: EngineHub, core: ScriptedClient
) -> None:
    async with front_end(hub) as (one, _):
        core.say(stats=SchedulerStats(num_generation_tokens=7))
        await until(lambda: one.stats.num_generation_tokens == 7)
        async with front_end(hub) as (late, _):
            await until(lambda: late.stats.num_generation_tokens == 7)


async def test_a_front_end_that_dies_while_it_is_connected_is_forgotten(hub: EngineHub, core: ScriptedClient) -> None:
    ours, theirs = socket.socketpair()

    def answer_and_hear_nothing_more() -> None:
        channel = ControlChannel(theirs)
        channel.receive()
        theirs.shutdown(socket.SHUT_RD)
        channel.send(Addresses(directory="", requests="inproc://nowhere", outputs="inproc://nowhere"))

    with ours, theirs:
        answering = asyncio.to_thread(answer_and_hear_nothing_more)
        attached, _ = await asyncio.gather(hub.attach(ours), answering, return_exceptions=True)
    assert isinstance(attached, EngineError)
    core.say(stats=SchedulerStats(num_running=1))  # would wait in its socket for good, as would all that follows
    assert hub.num_front_ends == 0


async def test_a_silent_hub_is_trouble_and_an_idle_one_is_not(hub: EngineHub, monkeypatch: pytest.MonkeyPatch) -> None:
    async with front_end(hub) as (one, _):
        wire = one._client._link  # type: ignore[attr-defined]
        for _ in range(2):  # it is heard of again and again, though there is nothing to tell
            heard_s = wire.heard_s
            await until(lambda heard_s=heard_s: wire.heard_s > heard_s)  # type: ignore[misc]
            assert one.trouble is None
        monkeypatch.setattr(hub_client, "_QUIET_S", 0.01)
        await until(lambda: "no sign of life" in (one.trouble or ""))
