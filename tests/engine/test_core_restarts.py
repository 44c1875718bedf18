"""Real core processes that are killed, stopped, hang or crash by themselves; their executor has no model."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from corefw.engine.async_engine import AsyncEngine, OutputStream
from corefw.engine.process import CoreProcess
from corefw.engine.restart_policy import LivenessLimits, RestartPolicy
from corefw.engine.supervisor import SupervisedClient
from corefw.errors import EngineDeadError
from corefw.messages.outputs import EngineCoreOutput, FinishReason
from tests.engine.fake_engine import config, expected, request, tokens
from tests.engine.leftovers import nothing_left, short_directory

# Liveness limits may be exceeded threefold on a loaded machine.
NOTICED_WITHIN_S = 3 * 2.0


@pytest.fixture
def sockets_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with short_directory(monkeypatch) as directory:
        yield directory


@contextlib.asynccontextmanager
async def running(directory: Path, policy: RestartPolicy | None = None, **settings: Any) -> AsyncIterator[AsyncEngine]:
    """A supervised engine that must leave nothing behind, whatever became of its cores."""
    with nothing_left(directory):
        process = CoreProcess.spawn(preload=())
        process.configure(config(**settings))
        engine = AsyncEngine(SupervisedClient(await process.connect(), policy))
        yield engine
        await engine.shutdown()
        await asyncio.sleep(0)


def core_pid(engine: AsyncEngine) -> int:
    return engine._client.pid  # type: ignore[attr-defined]


async def collect(stream: OutputStream) -> list[EngineCoreOutput]:
    return [output async for output in stream]


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_streams_go_on_after_the_core_was_killed(sockets_in: Path) -> None:
    async with running(sockets_in) as engine:
        streams = [engine.submit(request(f"r{i}", 60, delay_s=0.01)) for i in range(8)]
        collecting = [asyncio.create_task(collect(stream)) for stream in streams]
        for _ in range(2):
            await until(lambda: engine.trouble is None)
            await asyncio.sleep(0.15)
            killed = core_pid(engine)
            os.kill(killed, signal.SIGKILL)
            await until(lambda pid=killed: engine.trouble is not None and core_pid(engine) != pid)  # type: ignore[misc]
        for stream, outputs in zip(streams, await asyncio.gather(*collecting), strict=True):
            assert tokens(outputs) == expected(stream.request_id, 60)
            assert outputs[-1].finish_reason is FinishReason.LENGTH
            assert sum(output.num_cached_tokens is not None for output in outputs) == 1
        assert engine.stats.num_generation_tokens >= 8 * 60


@pytest.mark.slow
@pytest.mark.parametrize("order", ["crash_at", "dead_at"])
async def test_a_request_that_crashes_the_core_fails_alone(sockets_in: Path, order: str) -> None:
    async with running(sockets_in) as engine:
        innocents = [engine.submit(request(f"innocent {i}", 20)) for i in range(2)]
        poison = engine.submit(request("poison", 20, **{order: 3}))
        outputs = await collect(poison)
        assert tokens(outputs) == expected("poison", 3)
        assert outputs[-1].finish_reason is FinishReason.ERROR
        for stream in innocents:
            assert tokens(await collect(stream)) == expected(stream.request_id, 20)
        assert tokens(await collect(engine.submit(request("later")))) == expected("later")


async def test_a_stopped_core_is_noticed_and_then_replaced(sockets_in: Path) -> None:
    policy = RestartPolicy(limits=LivenessLimits(stopped_s=3.0))
    async with running(sockets_in, policy) as engine:
        stream = engine.submit(request("a", 40, delay_s=0.02))
        await anext(stream)
        stopped = core_pid(engine)
        os.kill(stopped, signal.SIGSTOP)
        began_s = time.monotonic()
        await until(lambda: engine.trouble is not None)
        assert time.monotonic() - began_s < NOTICED_WITHIN_S
        os.kill(stopped, signal.SIGCONT)
        await until(lambda: engine.trouble is None)
        assert core_pid(engine) == stopped
        os.kill(stopped, signal.SIGSTOP)
        await until(lambda: core_pid(engine) != stopped)
        assert tokens(await collect(stream)) == expected("a", 40)[1:]


async def test_a_step_that_never_ends_is_the_cores_death(sockets_in: Path) -> None:
    limits = LivenessLimits(step_s=1.0, first_step_s=1.0)
    async with running(sockets_in, RestartPolicy(limits=limits)) as engine:
        stream = engine.submit(request("stuck", 40, delay_s=600))
        stuck = core_pid(engine)
        await until(lambda: core_pid(engine) != stuck)
        stream.abort()
        assert tokens(await collect(engine.submit(request("later")))) == expected("later")


async def test_a_scheduler_that_never_comes_back_is_the_cores_death(sockets_in: Path) -> None:
    policy = RestartPolicy(limits=LivenessLimits(turn_s=1.0))
    async with running(sockets_in, policy, scheduler="tests.engine.fake_engine:StuckScheduler") as engine:
        stream = engine.submit(request("stuck"))
        stuck = core_pid(engine)
        await until(lambda: core_pid(engine) != stuck)
        stream.abort()
        assert tokens(await collect(engine.submit(request("later")))) == expected("later")


async def test_a_restart_that_hangs_is_given_up_and_tried_again(sockets_in: Path) -> None:
    # Three times what the first start took, however slow the machine is: the third one has to be quick enough.
    policy = RestartPolicy(limits=LivenessLimits(start_s=1.0, step_factor=3.0))
    async with running(sockets_in, policy) as engine:
        first = core_pid(engine)
        os.kill(first, signal.SIGKILL)
        await until(lambda: core_pid(engine) != first)
        hanging = core_pid(engine)
        os.kill(hanging, signal.SIGSTOP)
        await until(lambda: core_pid(engine) != hanging)
        assert tokens(await collect(engine.submit(request("later")))) == expected("later")


async def test_without_restarts_every_stream_fails_at_once(sockets_in: Path) -> None:
    async with running(sockets_in, RestartPolicy(max_restarts=0)) as engine:
        streams = [engine.submit(request(f"r{i}", 400, delay_s=0.01)) for i in range(4)]
        await anext(streams[0])
        began_s = time.monotonic()
        os.kill(core_pid(engine), signal.SIGKILL)
        results = await asyncio.gather(*map(collect, streams), return_exceptions=True)
        assert time.monotonic() - began_s < NOTICED_WITHIN_S
        assert all(isinstance(result, EngineDeadError) and "SIGKILL" in str(result) for result in results)
