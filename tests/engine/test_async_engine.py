"""The engine over both clients: a core on a thread of this process, and a core in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from corefw.engine.async_engine import AsyncEngine, OutputStream
from corefw.engine.process import CoreProcess
from corefw.errors import EngineDeadError, EngineError
from corefw.messages.outputs import EngineCoreOutput, FinishReason
from tests.engine.fake_engine import config, expected, plugins, request, tokens
from tests.engine.leftovers import exists, nothing_left, short_directory

Start = Callable[..., Awaitable[AsyncEngine]]

# Limits are asserted at three times their stated value.
DIES_WITHIN_S = 3 * 2.0
ENDS_WITHIN_S = 3 * 1.0


@pytest.fixture
def sockets_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with short_directory(monkeypatch) as directory:
        yield directory


async def on_thread(**overrides: Any) -> AsyncEngine:
    return await AsyncEngine.in_process(config(**overrides), plugins())


async def in_process_of_its_own(**overrides: Any) -> AsyncEngine:
    process = CoreProcess.spawn(preload=())
    process.configure(config(**overrides))
    return AsyncEngine(await process.connect())


@contextlib.asynccontextmanager
async def started(start: Start, directory: Path, **overrides: Any) -> AsyncIterator[AsyncEngine]:
    """An engine that must leave nothing behind."""
    with nothing_left(directory):
        engine = await start(**overrides)
        yield engine
        await engine.shutdown()
        await asyncio.sleep(0)


@pytest.fixture(params=[on_thread, in_process_of_its_own], ids=["thread", "process"])
async def engine(request: pytest.FixtureRequest, sockets_in: Path) -> AsyncIterator[AsyncEngine]:
    async with started(request.param, sockets_in) as made:
        yield made


@pytest.fixture
async def remote(sockets_in: Path) -> AsyncIterator[AsyncEngine]:
    """An engine whose core is a process."""
    async with started(in_process_of_its_own, sockets_in) as made:
        yield made


async def collect(stream: OutputStream) -> list[EngineCoreOutput]:
    return [output async for output in stream]


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


def at_rest(engine: AsyncEngine) -> bool:
    stats = engine.stats
    return engine.num_unfinished == 0 and (stats.num_running, stats.num_waiting, stats.kv_usage) == (0, 0, 0.0)


def core_pid(engine: AsyncEngine) -> int:
    return engine._client.pid  # type: ignore[attr-defined]


async def test_streams_run_side_by_side_and_get_their_own_tokens(engine: AsyncEngine) -> None:
    streams = [engine.submit(request(request_id)) for request_id in "abcdef"]
    for stream, outputs in zip(streams, await asyncio.gather(*map(collect, streams)), strict=True):
        assert tokens(outputs) == expected(stream.request_id)
        assert [output.finish_reason for output in outputs] == [None] * 4 + [FinishReason.LENGTH]
    await until(lambda: at_rest(engine))
    assert engine.stats.num_generation_tokens == 30
    assert engine.alive
    assert engine.plan.num_blocks == 256


async def test_an_ended_stream_stays_ended(engine: AsyncEngine) -> None:
    stream = engine.submit(request("a"))
    await collect(stream)
    assert await collect(stream) == []
    stream.abort()
    assert engine.num_unfinished == 0


async def test_an_id_in_use_is_refused_and_its_owner_undisturbed(engine: AsyncEngine) -> None:
    stream = engine.submit(request("a"))
    with pytest.raises(EngineError, match="'a' is in use"):
        engine.submit(request("a"))
    assert tokens(await collect(stream)) == expected("a")
    assert tokens(await collect(engine.submit(request("a")))) == expected("a")


async def test_an_aborted_stream_ends_at_once_and_its_id_is_free_once_the_core_says_so(engine: AsyncEngine) -> None:
    stream = engine.submit(request("a", 400, delay_s=0.6))
    first = await anext(stream)
    stream.abort()
    stream.abort()
    rest = await collect(stream)
    assert [output.finish_reason for output in rest][-1] is FinishReason.ABORT
    with pytest.raises(EngineError, match="is in use"):
        engine.submit(request("a"))
    await until(lambda: at_rest(engine))
    assert tokens([first, *await collect(engine.submit(request("a", 2)))]) == expected("a", 1) + expected("a", 2)


async def test_closing_a_stream_aborts_it(engine: AsyncEngine) -> None:
    stream = engine.submit(request("a", 400, delay_s=0.01))
    await anext(stream)
    await stream.aclose()
    assert await collect(stream) == []
    await until(lambda: at_rest(engine))


async def test_cancelling_the_consumer_aborts_the_request(engine: AsyncEngine) -> None:
    consumer = asyncio.create_task(collect(engine.submit(request("a", 400, delay_s=0.01))))
    await until(lambda: engine.stats.num_running == 1)
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    await until(lambda: at_rest(engine))


async def test_gauges_fall_to_zero_after_everything_was_aborted(engine: AsyncEngine) -> None:
    streams = [engine.submit(request(str(i), 400, delay_s=0.01)) for i in range(20)]
    await until(lambda: engine.stats.num_running == 16 and engine.stats.num_waiting == 4)
    for stream in streams:
        stream.abort()
    await until(lambda: at_rest(engine), ENDS_WITHIN_S)


async def test_a_request_that_fails_alone_leaves_its_neighbours_whole(engine: AsyncEngine) -> None:
    ids = [f"good {i}" for i in range(5)]
    streams = [engine.submit(request(i)) for i in ids]
    bad = engine.submit(request("bad", fail_at=2))
    outputs = await collect(bad)
    assert (outputs[-1].finish_reason, outputs[-1].error) == (FinishReason.ERROR, "told to fail")
    for stream in streams:
        assert tokens(await collect(stream)) == expected(stream.request_id)


async def test_a_step_that_raises_ends_its_requests_and_the_engine_goes_on(engine: AsyncEngine) -> None:
    outputs = await collect(engine.submit(request("bad", raise_at=1)))
    assert outputs[-1].finish_reason is FinishReason.ERROR
    assert tokens(await collect(engine.submit(request("good")))) == expected("good")
    await until(lambda: at_rest(engine))
    assert engine.alive


async def test_a_request_that_can_never_run_ends_with_the_reason(engine: AsyncEngine) -> None:
    (output,) = await collect(engine.submit(request("long", prompt_ids=[1] * 600)))
    assert output.finish_reason is FinishReason.ERROR
    assert "512" in (output.error or "")


async def test_a_request_with_a_field_of_the_wrong_type_ends_alone(remote: AsyncEngine) -> None:
    (output,) = await collect(remote.submit(request("bad", prompt_ids=[1.5])))
    assert output.finish_reason is FinishReason.ERROR
    assert "prompt_ids" in (output.error or "")
    assert tokens(await collect(remote.submit(request("good")))) == expected("good")


async def test_a_request_that_cant_be_sent_is_refused_and_not_kept(remote: AsyncEngine) -> None:
    for wrong in ({"extra": object()}, {"extra": 2**70}):
        with pytest.raises(EngineError, match="'bad' can't be sent"):
            remote.submit(request("bad", **wrong))
    assert remote.num_unfinished == 0
    assert tokens(await collect(remote.submit(request("bad")))) == expected("bad")


async def test_a_plugins_data_that_cant_be_sent_is_left_out_and_the_core_lives(sockets_in: Path) -> None:
    extra_executor = "tests.engine.fake_engine:ExtraExecutor"
    async with started(in_process_of_its_own, sockets_in, distributed_executor_backend=extra_executor) as engine:
        streams = [engine.submit(request(request_id)) for request_id in ("bad", "good")]
        bad, good = await asyncio.gather(*map(collect, streams))
        assert (tokens(bad), tokens(good)) == (expected("bad"), expected("good"))
        assert bad[0].extra == {}
        assert good[0].extra == {"seen": [1, "a", b"b"]}


async def test_calls_are_answered_while_requests_run(engine: AsyncEngine) -> None:
    stream = engine.submit(request("a", 400, delay_s=0.05))  # outlasts the calls
    await anext(stream)
    stats, plan = await asyncio.gather(engine.call("stats"), engine.call("plan"))
    assert stats["num_running"] == 1
    assert plan["block_size"] == 4
    with pytest.raises(EngineError, match="reset_prefix_cache"):
        await engine.call("no_such_call")
    await stream.aclose()


async def test_the_answer_to_a_cancelled_call_is_dropped(engine: AsyncEngine) -> None:
    stream = engine.submit(request("a", 400, delay_s=0.1))
    await anext(stream)
    call = asyncio.create_task(engine.call("stats"))
    await asyncio.sleep(0)  # it is on its way now
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await stream.aclose()
    assert (await engine.call("stats"))["num_running"] == 0


_closing: set[asyncio.Task[None]] = set()


def _close(stream: OutputStream) -> None:
    """The coroutine is made when its time has come: the loop may end before."""
    _closing.add(task := asyncio.create_task(stream.aclose()))
    task.add_done_callback(_closing.discard)


async def test_random_aborts_leave_no_request_and_no_block_behind(engine: AsyncEngine) -> None:
    rng = random.Random(1)

    async def consume(index: int) -> list[EngineCoreOutput]:
        await asyncio.sleep(rng.random() * 0.5)
        stream = engine.submit(request(str(index), rng.randint(1, 40), delay_s=0.0005))
        match rng.choice(["run", "abort", "abort now", "close"]):
            case "abort now":
                stream.abort()
            case "abort":
                asyncio.get_running_loop().call_later(rng.random() * 0.1, stream.abort)
            case "close":
                asyncio.get_running_loop().call_later(rng.random() * 0.1, _close, stream)
        return await collect(stream)

    async with asyncio.timeout(30):
        for outputs in await asyncio.gather(*map(consume, range(200))):
            assert sum(output.finish_reason is not None for output in outputs) <= 1
            assert all(output.finish_reason is not FinishReason.ERROR for output in outputs)
    await until(lambda: at_rest(engine))
    assert await engine.call("reset_prefix_cache"), "no request holds a block"


async def test_a_core_that_crashes_makes_every_stream_raise_with_the_reason(engine: AsyncEngine) -> None:
    others = [engine.submit(request(str(i), 400)) for i in range(3)]
    bad = engine.submit(request("bad", dead_at=2, delay_s=0.01))
    async with asyncio.timeout(DIES_WITHIN_S):
        results = await asyncio.gather(*map(collect, [bad, *others]), return_exceptions=True)
    for result in results:
        assert isinstance(result, EngineDeadError)
        assert "told that the workers are gone" in str(result)
    assert engine.death is not None
    assert not engine.alive
    assert engine.stats.num_running == 0
    with pytest.raises(EngineDeadError):
        engine.submit(request("a"))
    with pytest.raises(EngineDeadError):
        await engine.call("stats")


@pytest.mark.parametrize(
    ("order", "end"), [("crash_at", "killed by signal 9 (SIGKILL)"), ("exit_at", "exited with status 3")]
)
async def test_a_core_process_that_ends_makes_every_stream_raise_with_how(
    remote: AsyncEngine, order: str, end: str
) -> None:
    other = engine_stream = remote.submit(request("other", 400))
    bad = remote.submit(request("bad", **{order: 1}, delay_s=0.01))
    call = asyncio.create_task(remote.call("stats"))
    await asyncio.sleep(0)
    async with asyncio.timeout(DIES_WITHIN_S):
        results = await asyncio.gather(collect(bad), collect(other), return_exceptions=True)
    assert all(isinstance(result, EngineDeadError) and end in str(result) for result in results)
    await asyncio.gather(call, return_exceptions=True)
    engine_stream.abort()  # no effect, no error


async def test_a_core_that_is_killed_while_idle_is_noticed(remote: AsyncEngine) -> None:
    os.kill(core_pid(remote), signal.SIGKILL)
    await until(lambda: remote.death is not None, DIES_WITHIN_S)
    assert "SIGKILL" in str(remote.death)


async def test_tokens_from_before_the_death_arrive_before_the_error(remote: AsyncEngine) -> None:
    stream = remote.submit(request("a", 400, crash_at=20))
    received: list[int] = []
    with contextlib.suppress(EngineDeadError):
        async for output in stream:
            received += output.new_token_ids
    assert remote.death is not None
    assert received == expected("a", 400)[: len(received)]
    assert len(received) > 0


async def test_shutdown_lets_running_requests_finish(engine: AsyncEngine) -> None:
    stream = engine.submit(request("a", 20, delay_s=0.01))
    await anext(stream)
    shutdown = asyncio.create_task(engine.shutdown(drain_s=20))
    await asyncio.sleep(0)
    with pytest.raises(EngineDeadError, match="shutting down"):
        engine.submit(request("b"))
    outputs = await collect(stream)
    assert tokens(outputs) == expected("a", 20)[1:]
    await shutdown
    assert not engine.alive


async def test_shutdown_aborts_what_outlasts_the_drain(engine: AsyncEngine) -> None:
    streams = [engine.submit(request(str(i), 400, delay_s=0.02)) for i in range(3)]
    await anext(streams[0])
    began = time.monotonic()
    await asyncio.gather(engine.shutdown(drain_s=0.1), engine.shutdown())
    assert time.monotonic() - began < 5
    for stream in streams:
        assert (await collect(stream))[-1].finish_reason is FinishReason.ABORT


async def test_shutdown_kills_a_core_that_doesnt_answer(sockets_in: Path) -> None:
    with nothing_left(sockets_in):
        process = CoreProcess.spawn(preload=())
        process.configure(config())
        engine = AsyncEngine(await process.connect(), grace_s=0.2)
        stream = engine.submit(request("a", 400, delay_s=0.01))
        await anext(stream)
        os.kill(process.pid, signal.SIGSTOP)
        await engine.shutdown()
        assert not exists(process.pid)
        assert (await collect(stream))[-1].finish_reason is FinishReason.ABORT


async def test_a_dead_engine_can_be_shut_down(remote: AsyncEngine) -> None:
    pid = core_pid(remote)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: remote.death is not None)
    await remote.shutdown()
    assert not exists(pid)


async def test_a_core_on_a_thread_raises_its_start_error_as_it_is(sockets_in: Path) -> None:
    with nothing_left(sockets_in), pytest.raises(ValueError, match="told to fail"):
        await on_thread(model="fake:error")
    await asyncio.sleep(0)
