"""Calls and events of a real plugin, with the core on a thread and in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from corefw.engine.async_engine import AsyncEngine
from corefw.engine.event_subscription import MAX_UNREAD_EVENTS, EventSubscription
from corefw.engine.process import CoreProcess
from corefw.errors import EngineDeadError, RequestError
from corefw.messages.events import PluginEvent
from corefw.plugin_system.calls import PluginCalls
from corefw.plugin_system.events import EventQueue
from corefw.plugin_system.manager import PluginManager
from tests.engine.fake_engine import config, request
from tests.sample_plugins.install import install_sample

Start = Callable[[PluginManager], Awaitable[AsyncEngine]]


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PluginManager]:
    site = tmp_path_factory.mktemp("site")
    install_sample("remote", site)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        manager = PluginManager.discover("remote")
        manager.load_general("front_end")
        yield manager


async def on_thread(plugins: PluginManager) -> AsyncEngine:
    return await AsyncEngine.in_process(config(resolved=plugins.resolved()), plugins)


async def in_process_of_its_own(plugins: PluginManager) -> AsyncEngine:
    process = CoreProcess.spawn(preload=())
    process.configure(config(resolved=plugins.resolved()))
    return AsyncEngine(await process.connect())


@pytest.fixture(params=[on_thread, in_process_of_its_own], ids=["thread", "process"])
async def engine(request: pytest.FixtureRequest, plugins: PluginManager) -> AsyncIterator[AsyncEngine]:
    start: Start = request.param
    made = await start(plugins)
    yield made
    await made.shutdown()


async def finish(engine: AsyncEngine, request_id: str) -> list[int]:
    return [token async for output in engine.submit(request(request_id)) for token in output.new_token_ids]


async def test_a_function_answers_with_what_it_was_given(engine: AsyncEngine) -> None:
    values = [None, -1, 2.5, "ü", b"\x00", [1, {"a": []}]]
    assert await engine.call_plugin("remote.echo", *values) == values


async def test_what_goes_wrong_is_the_callers_to_read_and_the_engine_goes_on(engine: AsyncEngine) -> None:
    for name, args, message in [
        ("remote.fail", ("no luck",), "remote.fail failed: ValueError: no luck"),
        ("remote.ehco", (), "did you mean remote.echo"),
        ("remote.echo", (object(),), "arguments has a object"),
        ("remote.bad", (), "its result has a object"),
        ("remote.garble", (), "remote.garble failed: ValueError"),
        ("remote.leave", (3,), "remote.leave failed: SystemExit: 3"),
        ("echo", (), "takes plugin.method"),
    ]:
        with pytest.raises(RequestError, match=message):
            await engine.call_plugin(name, *args)
    with pytest.raises(RequestError, match=r"within 0.05 s"):
        await engine.call_plugin("remote.sleep", 0.3, timeout_s=0.05)
    assert len(await finish(engine, "a")) == 5


async def test_subscribers_get_the_events_of_their_topics_until_they_close(engine: AsyncEngine) -> None:
    with (
        engine.subscribe("remote.ended") as ended,
        engine.subscribe("remote") as every,
        engine.subscribe("other") as other,
    ):
        token_ids = await finish(engine, "a")
        for subscription in (ended, every):
            event = await asyncio.wait_for(anext(subscription), 5)
            assert (event.topic, event.process) == ("remote.ended", "engine_core")
            assert event.data == {"reason": "length", "tokens": token_ids}
        waiting = asyncio.create_task(anext(other))
        await asyncio.sleep(0)
        other.close()
        with pytest.raises(StopAsyncIteration):
            await waiting
    assert await finish(engine, "b")
    with pytest.raises(StopAsyncIteration):
        await anext(ended)


async def test_a_dead_engine_ends_subscriptions_and_calls(engine: AsyncEngine) -> None:
    subscription = engine.subscribe()
    await engine.shutdown()
    with pytest.raises(EngineDeadError):
        await anext(subscription)
    with pytest.raises(EngineDeadError):
        await engine.call_plugin("remote.echo")
    with pytest.raises(EngineDeadError):
        engine.subscribe()


async def test_a_slow_reader_loses_the_oldest_events_and_knows_how_many() -> None:
    subscription = EventSubscription((), lambda _: None)
    for index in range(MAX_UNREAD_EVENTS + 3):
        subscription.put(PluginEvent(topic="mine.a", data=index, time_s=0.0, process="worker"))
    assert (await anext(subscription)).data == 3
    assert subscription.num_dropped == 3


def test_an_event_is_what_it_was_when_it_was_told() -> None:
    queue, counts = EventQueue("engine_core"), {"seen": [1]}
    queue.put("mine.counts", counts)
    counts["seen"].append(2)
    assert queue.take()[0][0].data == {"seen": [1]}


def test_a_call_of_nothing_says_that_there_is_nothing() -> None:
    with pytest.raises(RequestError, match=r"no plugin offers 'a\.b'; there are none"):
        PluginCalls({}).call("a.b", ())
