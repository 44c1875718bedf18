"""What happens to requests, calls and figures when cores die; the cores are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from corefw.engine.async_engine import AsyncEngine
from corefw.engine.output_stream import OutputStream
from corefw.engine.restart_policy import LivenessLimits, RestartPolicy
from corefw.engine.step_board import Doing
from corefw.engine.supervisor import SupervisedClient
from corefw.errors import EngineDeadError, EngineError
from corefw.messages.arrays import Array
from corefw.messages.outputs import (
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    PromptLogprobs,
    RequestTimes,
    SchedulerStats,
    UtilityResult,
)
from corefw.messages.sampling import SamplingParams
from tests.engine.fake_engine import request, tokens
from tests.engine.scripted_core import ScriptedCores, plan

LENGTH = FinishReason.LENGTH
NO_DELAY = RestartPolicy(max_restarts=3, first_delay_s=0.0)
NOTHING = Array("int32", (0, 1), b"")


@pytest.fixture
async def cores() -> ScriptedCores:
    return ScriptedCores()


Make = Callable[[RestartPolicy], AsyncEngine]


@pytest.fixture
async def make(cores: ScriptedCores) -> AsyncIterator[Make]:
    made: list[AsyncEngine] = []

    def make(policy: RestartPolicy) -> AsyncEngine:
        made.append(AsyncEngine(SupervisedClient(cores.make(), policy), grace_s=0.05))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for engine in made:
        await engine.shutdown()
    assert all(core.is_stopped for core in cores.cores)


@pytest.fixture
async def engine(make: Make) -> AsyncEngine:
    return make(NO_DELAY)


async def collect(stream: OutputStream) -> list[EngineCoreOutput]:
    async with asyncio.timeout(5):
        return [output async for output in stream]


async def started(cores: ScriptedCores, number: int) -> None:
    """Wait until so many cores have been started, and have got what is for them."""
    async with asyncio.timeout(5):
        while len(cores.cores) < number:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)
    await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_request_goes_on_with_its_tokens_so_far(engine: AsyncEngine, cores: ScriptedCores) -> None:
    stream = engine.submit(request("a", 4, mark=1))
    cores.latest.say("a", 11, 12)
    cores.latest.die("a")
    await started(cores, 2)
    (resumed,) = cores.latest.requests
    assert resumed.prior_output_ids == [11, 12]
    assert (resumed.prompt_ids, resumed.params, resumed.extra) == (
        request("a", 4).prompt_ids,
        request("a", 4).params,
        {"mark": 1},
    )
    cores.latest.say("a", 13)
    cores.latest.die("a")
    await started(cores, 3)
    assert cores.latest.requests[0].prior_output_ids == [11, 12, 13]
    cores.latest.say("a", 14, reason=LENGTH)
    assert tokens(await collect(stream)) == [11, 12, 13, 14]


async def test_what_the_first_output_tells_is_told_once(engine: AsyncEngine, cores: ScriptedCores) -> None:
    params = SamplingParams(temperature=0, seed=1, max_tokens=4, prompt_logprobs=0)
    stream = engine.submit(request("a").__class__(request_id="a", prompt_ids=[1, 2], params=params))
    first = {"num_cached_tokens": 3, "times": RequestTimes(1.0), "prompt_logprobs": PromptLogprobs(*[NOTHING] * 3)}
    cores.latest.die("a")  # before anything was said: all of it is still due
    await started(cores, 2)
    assert cores.latest.requests[0].params.prompt_logprobs == 0
    cores.latest.say("a", 11, **first)
    cores.latest.die("a")
    await started(cores, 3)
    assert cores.latest.requests[0].params.prompt_logprobs is None
    cores.latest.say("a", 12, reason=LENGTH, num_cached_tokens=2, times=RequestTimes(2.0))
    told = await collect(stream)
    assert [output.num_cached_tokens for output in told] == [3, None]
    assert [output.times for output in told] == [RequestTimes(1.0), None]
    assert told[0].prompt_logprobs is not None


async def test_requests_wait_while_there_is_no_core(engine: AsyncEngine, cores: ScriptedCores) -> None:
    cores.gate.clear()
    cores.latest.die()
    await settled()
    stream = engine.submit(request("late"))
    with pytest.raises(EngineError, match="can't be sent"):
        engine.submit(request("wrong", bad=object()))
    assert "is being restarted" in (engine.trouble or "")
    assert engine.alive
    cores.gate.set()
    await started(cores, 2)
    assert engine.trouble is None
    assert cores.latest.ids == ["late"]
    cores.latest.say("late", 1, reason=LENGTH)
    assert tokens(await collect(stream)) == [1]


async def test_aborted_requests_end_and_are_not_given_to_the_next_core(
    engine: AsyncEngine, cores: ScriptedCores
) -> None:
    before, meanwhile = engine.submit(request("before")), engine.submit(request("meanwhile"))
    await settled()
    before.abort()
    assert cores.latest.aborted == ["before"]
    cores.gate.clear()
    cores.latest.die("before", "meanwhile")
    await settled()
    meanwhile.abort()
    assert (await collect(before))[-1].finish_reason is FinishReason.ABORT
    assert (await collect(meanwhile))[-1].finish_reason is FinishReason.ABORT
    cores.gate.set()
    await started(cores, 2)
    assert engine.num_unfinished == 0
    assert cores.latest.ids == []


async def test_calls_are_made_again_but_those_of_plugins_fail(engine: AsyncEngine, cores: ScriptedCores) -> None:
    own = asyncio.create_task(engine.call("stats"))
    plugins = asyncio.create_task(engine.call("some.thing"))
    await settled()
    cores.gate.clear()
    cores.latest.die()
    await settled()
    waiting = asyncio.create_task(engine.call("some.more"))
    await settled()
    with pytest.raises(EngineError, match="died before it answered"):
        await plugins
    cores.gate.set()
    await started(cores, 2)
    assert [call.method for call in cores.latest.calls] == ["stats", "some.more"]
    for call, value in zip(cores.latest.calls, (1, 2), strict=True):
        cores.latest.deliver(EngineCoreOutputs(utility=UtilityResult(call_id=call.call_id, value=value)))
    assert (await own, await waiting) == (1, 2)


async def test_what_was_set_is_set_again_before_requests_run(engine: AsyncEngine, cores: ScriptedCores) -> None:
    async def call(method: str, *args: object, error: str | None = None) -> None:
        made = asyncio.create_task(engine.call(method, *args))
        await settled()
        answer = UtilityResult(call_id=cores.latest.calls[-1].call_id, error=error)
        cores.latest.deliver(EngineCoreOutputs(utility=answer))
        await asyncio.gather(made, return_exceptions=True)

    await call("set_log_level", "DEBUG")
    await call("set_log_level", "ERROR")
    await call("set_log_level", "LOUD", error="there is no such level")
    await call("reset_prefix_cache")
    engine.submit(request("a"))
    cores.latest.die()
    await started(cores, 2)
    assert cores.latest.order == ["set_log_level", "a"]
    (replayed,) = cores.latest.calls
    assert replayed.args == ["ERROR"]
    cores.latest.deliver(EngineCoreOutputs(utility=UtilityResult(call_id=replayed.call_id)))
    await settled()
    assert engine.death is None  # nobody had asked for that answer


async def test_a_death_in_a_call_makes_nobody_suspect(engine: AsyncEngine, cores: ScriptedCores) -> None:
    stream = engine.submit(request("a"))
    for number in (2, 3, 4):
        call = asyncio.create_task(engine.call("some.plugin"))
        await settled()
        cores.latest.say("a", number)
        await settled()
        cores.latest.process.board.doing = Doing.CALL
        cores.latest.die()
        with pytest.raises(EngineError, match="whether the call had an effect"):
            await call
        await started(cores, number)
    assert cores.latest.ids == ["a"]
    cores.latest.say("a", 5, reason=LENGTH)
    assert tokens(await collect(stream)) == [2, 3, 4, 5]


async def test_a_call_that_can_not_be_sent_is_refused_while_there_is_no_core(
    engine: AsyncEngine, cores: ScriptedCores
) -> None:
    cores.gate.clear()
    cores.latest.die()
    await settled()
    with pytest.raises(TypeError):
        await engine.call("some.plugin", object())
    cores.gate.set()
    await started(cores, 2)
    assert cores.latest.calls == []
    assert engine.death is None


async def test_a_restart_that_fails_in_an_unforeseen_way_is_tried_again_and_told(
    engine: AsyncEngine, cores: ScriptedCores
) -> None:
    stream = engine.submit(request("a"))
    cores.plans = []
    cores.latest.die("a")
    with pytest.raises(EngineDeadError, match="list index out of range; 3 restarts in a row brought no progress"):
        await collect(stream)


async def test_counters_go_on_and_gauges_tell_of_who_waits(engine: AsyncEngine, cores: ScriptedCores) -> None:
    engine.submit(request("a"))
    counted = {"num_generation_tokens": 5, "step_token_counts": (1, 2)}
    cores.latest.deliver(EngineCoreOutputs(stats=SchedulerStats(num_running=1, kv_usage=0.5, **counted)))
    cores.gate.clear()
    cores.latest.die("a")
    await settled()
    assert engine.stats == SchedulerStats(num_waiting=1, num_restarts=1, **counted)
    cores.gate.set()
    await started(cores, 2)
    cores.latest.deliver(
        EngineCoreOutputs(stats=SchedulerStats(num_running=1, num_generation_tokens=2, step_token_counts=(1, 0)))
    )
    await settled()
    assert engine.stats == SchedulerStats(
        num_running=1, num_generation_tokens=7, step_token_counts=(2, 2), num_restarts=1
    )
    cores.latest.die("a")
    await settled()
    assert engine.stats.num_restarts == 2


async def test_only_restarts_without_progress_are_counted(engine: AsyncEngine, cores: ScriptedCores) -> None:
    engine.submit(request("a", 9))
    for number in range(1, 6):  # more than three, but each has brought a token
        cores.latest.say("a", number)
        cores.latest.die()
        await started(cores, number + 1)
    cores.latest.say("a", 6)
    cores.start_errors = ["no memory", "no memory"]
    cores.latest.die()
    await started(cores, 7)  # at the third try
    assert engine.death is None


async def test_after_so_many_restarts_without_progress_it_is_the_end(engine: AsyncEngine, cores: ScriptedCores) -> None:
    stream = engine.submit(request("a"))
    cores.latest.say("a", 1)
    cores.start_errors = ["no memory"] * 9
    cores.latest.die("a")
    with pytest.raises(EngineDeadError, match="no memory; 3 restarts in a row brought no progress"):
        await collect(stream)
    assert len(cores.start_errors) == 6
    assert engine.death is not None
    assert not engine.alive


async def test_without_restarts_a_dead_core_is_the_end(make: Make, cores: ScriptedCores) -> None:
    engine = make(RestartPolicy(max_restarts=0))
    stream = engine.submit(request("a"))
    cores.latest.die("a")
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        await collect(stream)
    assert len(cores.cores) == 1


def test_each_further_restart_without_progress_waits_twice_as_long() -> None:
    policy = RestartPolicy(first_delay_s=1.0, max_delay_s=5.0)
    assert [policy.delay_s(number) for number in range(1, 7)] == [0.0, 1.0, 2.0, 4.0, 5.0, 5.0]


async def test_only_the_request_that_crashes_the_core_alone_fails(engine: AsyncEngine, cores: ScriptedCores) -> None:
    ids = ["a", "b", "poison", "d"]
    streams = {name: engine.submit(request(name, 2)) for name in ids}
    for name in ids:
        cores.latest.say(name, 1)
    cores.latest.die(*ids)
    await started(cores, 2)
    assert cores.latest.ids == ids
    cores.latest.die(*ids)  # again, and nobody has got on: now it is one of them
    await started(cores, 3)
    assert cores.latest.ids == ["a", "b"]
    late = engine.submit(request("late", 1))
    cores.latest.say("a", 2, reason=LENGTH)
    await settled()
    assert cores.latest.ids == ["a", "b"]
    cores.latest.say("b", 2, reason=LENGTH)
    await settled()
    assert cores.latest.ids == ["a", "b", "poison", "d"]
    cores.latest.die("poison", "d")
    await started(cores, 4)
    assert cores.latest.ids == ["poison"]
    cores.latest.die("poison")
    await started(cores, 5)
    (failed,) = (await collect(streams["poison"]))[1:]
    assert failed.finish_reason is FinishReason.ERROR
    assert "crashed each time it computed this request, even alone" in (failed.error or "")
    assert cores.latest.ids == ["d"]
    cores.latest.say("d", 2, reason=LENGTH)
    await settled()
    assert cores.latest.ids == ["d", "late"]
    cores.latest.say("late", 1, reason=LENGTH)
    for name in ("a", "b", "d"):
        assert tokens(await collect(streams[name])) == [1, 2]
    assert tokens(await collect(late)) == [1]


async def test_a_suspect_whose_client_goes_lets_the_others_in(engine: AsyncEngine, cores: ScriptedCores) -> None:
    streams = [engine.submit(request(name)) for name in ("a", "b")]
    cores.latest.die("a", "b")
    await started(cores, 2)
    cores.latest.die("a", "b")
    await started(cores, 3)
    assert cores.latest.ids == ["a"]
    streams[0].abort()
    cores.latest.say("a", reason=FinishReason.ABORT)
    await settled()
    assert cores.latest.ids == ["a", "b"]


async def test_one_who_waits_on_trial_can_be_aborted(engine: AsyncEngine, cores: ScriptedCores) -> None:
    streams = [engine.submit(request(name)) for name in ("a", "b")]
    for number in (2, 3):
        cores.latest.die("a", "b")
        await started(cores, number)
    streams[1].abort()
    await settled()
    assert engine.num_unfinished == 1
    cores.latest.say("a", 1)
    await settled()
    assert cores.latest.ids == ["a"]


async def test_a_core_starts_with_the_same_plan(engine: AsyncEngine, cores: ScriptedCores) -> None:
    cores.latest.die()
    await started(cores, 2)
    config = cores.latest.config
    assert (config.cache.num_gpu_blocks_override, config.model.max_model_len) == (64, 512)


async def test_what_no_longer_fits_fails_alone(engine: AsyncEngine, cores: ScriptedCores) -> None:
    large, small = engine.submit(request("large", 400)), engine.submit(request("small", 4))
    cores.plans = [plan(max_model_len=100, num_blocks=8)]
    cores.start_errors = ["no memory for 64 blocks"]
    cores.latest.die()
    await started(cores, 2)
    assert cores.latest.config.cache.num_gpu_blocks_override == 256  # as configured: the second try takes what there is
    assert engine.plan.max_model_len == 100
    (failed,) = await collect(large)
    assert failed.finish_reason is FinishReason.ERROR
    assert "406 tokens don't fit: 100 do" in (failed.error or "")
    assert cores.latest.ids == ["small"]
    cores.latest.say("small", 1, reason=LENGTH)
    assert tokens(await collect(small)) == [1]


async def test_a_shutdown_ends_a_restart(engine: AsyncEngine, cores: ScriptedCores) -> None:
    stream = engine.submit(request("a"))
    cores.gate.clear()
    cores.latest.die("a")
    await settled()
    async with asyncio.timeout(2):
        await engine.shutdown()
    assert (await collect(stream))[-1].finish_reason is FinishReason.ABORT
    assert len(cores.cores) == 1


async def test_a_shutdown_waits_for_requests_that_go_on_after_a_restart(
    engine: AsyncEngine, cores: ScriptedCores
) -> None:
    stream = engine.submit(request("a"))
    cores.gate.clear()
    cores.latest.die("a")
    await settled()
    shutdown = asyncio.create_task(engine.shutdown(drain_s=5))
    await settled()
    cores.gate.set()
    await started(cores, 2)
    cores.latest.say("a", 1, reason=LENGTH)
    assert tokens(await collect(stream)) == [1]
    await shutdown


async def test_a_core_without_a_heartbeat_is_in_trouble_until_it_beats_again(make: Make, cores: ScriptedCores) -> None:
    engine = make(RestartPolicy(limits=LivenessLimits(quiet_s=0.3)))
    async with asyncio.timeout(10):
        cores.latest.process.board.is_beating = False
        while "no sign of life" not in (engine.trouble or ""):  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)
        cores.latest.process.board.is_beating = True
        while engine.trouble is not None:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)
