from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from corefw.engine.async_engine import AsyncEngine
from corefw.engine.clients.data_parallel import DataParallelClient
from corefw.errors import EngineDeadError, EngineError
from corefw.messages.outputs import EngineCoreOutput, FinishReason, SchedulerStats
from tests.engine.clients.scripted_client import ScriptedClient
from tests.engine.fake_engine import config, request


@pytest.fixture
def cores() -> list[ScriptedClient]:
    return [ScriptedClient(), ScriptedClient(num_blocks=50, max_model_len=32)]


@pytest.fixture
async def engine(cores: list[ScriptedClient]) -> AsyncIterator[AsyncEngine]:
    made = AsyncEngine(DataParallelClient(config(data_parallel_size=2), cores), grace_s=0.1)
    yield made
    await made.shutdown()


async def test_the_plan_holds_for_every_engine(engine: AsyncEngine) -> None:
    assert (engine.plan.num_blocks, engine.plan.max_model_len) == (50, 32)
    assert engine.config.parallel.data_parallel_size == 2


async def test_outputs_of_all_engines_reach_their_streams(engine: AsyncEngine, cores: list[ScriptedClient]) -> None:
    streams = [engine.submit(request(name)) for name in "ab"]
    assert [core.requests for core in cores] == [["a"], ["b"]]
    cores[1].say(EngineCoreOutput(request_id="b", new_token_ids=[2]))
    cores[0].end("a")
    cores[1].end("b")
    ends = [[output async for output in stream] for stream in streams]
    assert [output.new_token_ids for output in ends[1]] == [[2], []]
    assert ends[0][-1].finish_reason is FinishReason.STOP


async def test_an_abort_reaches_the_engine_that_has_the_request(
    engine: AsyncEngine, cores: list[ScriptedClient]
) -> None:
    streams = [engine.submit(request(name)) for name in "abc"]
    streams[1].abort()
    streams[2].abort()
    assert [core.aborted for core in cores] == [["c"], ["b"]]


async def test_a_request_that_could_not_be_sent_counts_nowhere(
    engine: AsyncEngine, cores: list[ScriptedClient]
) -> None:
    for name in "ab":
        with pytest.raises(EngineError, match="not plain"):
            engine.submit(request(name, unsendable=True))
    engine.submit(request("c"))
    engine.submit(request("d"))
    assert [core.requests for core in cores] == [["c"], ["d"]]


async def test_figures_of_all_engines_are_one(engine: AsyncEngine, cores: list[ScriptedClient]) -> None:
    stream = engine.submit(request("a"))
    cores[1].say(stats=SchedulerStats(num_running=2, num_generation_tokens=7))
    cores[0].end("a", stats=SchedulerStats(num_running=1, num_generation_tokens=1))
    assert [output.finish_reason async for output in stream] == [FinishReason.STOP]
    assert (engine.stats.num_running, engine.stats.num_generation_tokens) == (3, 8)


async def test_a_call_is_answered_when_every_engine_has(engine: AsyncEngine, cores: list[ScriptedClient]) -> None:
    call = asyncio.create_task(engine.call("reset_prefix_cache"))
    await asyncio.sleep(0)
    (asked,), (also,) = (core.calls for core in cores)
    assert asked == also
    cores[1].answer(asked.call_id, True)
    await asyncio.sleep(0.05)
    assert not call.done()
    cores[0].answer(asked.call_id, True)
    assert await call is True


async def test_a_call_that_one_engine_refuses_is_refused(engine: AsyncEngine, cores: list[ScriptedClient]) -> None:
    call = asyncio.create_task(engine.call("stats"))
    await asyncio.sleep(0)
    cores[0].answer(cores[0].calls[0].call_id, error="not now")
    cores[1].answer(cores[1].calls[0].call_id, {})
    with pytest.raises(EngineError, match="not now"):
        await call


async def test_one_engine_that_is_gone_ends_the_whole_and_is_named(
    engine: AsyncEngine, cores: list[ScriptedClient]
) -> None:
    streams = [engine.submit(request(name)) for name in "ab"]
    cores[1].die("the engine core crashed")
    for stream in streams:
        with pytest.raises(EngineDeadError, match="engine 1 of 2: the engine core crashed"):
            await anext(stream)


async def test_a_stop_stops_every_engine(engine: AsyncEngine, cores: list[ScriptedClient]) -> None:
    await engine.shutdown()
    assert [core.num_stops for core in cores] == [1, 1]
    assert not engine.alive


async def test_while_an_engine_is_in_trouble_the_others_get_what_comes(
    engine: AsyncEngine, cores: list[ScriptedClient]
) -> None:
    cores[0].trouble_text = "it is being restarted"
    for name in "abc":
        engine.submit(request(name))
    cores[0].trouble_text = None
    for name in "de":
        engine.submit(request(name))
    assert [core.requests for core in cores] == [["d", "e"], ["a", "b", "c"]]
