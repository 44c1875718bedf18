from __future__ import annotations

import asyncio
from typing import Any

import pytest

from corefw.errors import EngineDeadError
from corefw.messages.outputs import EngineCoreOutput, FinishReason
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.testing.scripted_engine import ScriptedEngine, ScriptedFailure


def request(**params: Any) -> EngineCoreRequest:
    return EngineCoreRequest(request_id="r", prompt_ids=[1, 2], params=SamplingParams(**params), eos_ids=(9,))


async def play(engine: ScriptedEngine, **params: Any) -> list[EngineCoreOutput]:
    return [output async for output in engine.submit(request(**params))]


@pytest.mark.parametrize(
    ("script", "params", "tokens", "reason", "stop_reason"),
    [
        ([3, 4], {}, [3, 4], FinishReason.STOP, None),
        ([3, 9, 4], {}, [3, 9], FinishReason.STOP, None),
        ([3, 9, 4, 5], {"ignore_eos": True, "max_tokens": 3}, [3, 9, 4], FinishReason.LENGTH, None),
        ([3, 9, 4, 9], {"min_tokens": 3}, [3, 9, 4, 9], FinishReason.STOP, None),
        ([3, 4, 5], {"stop_token_ids": (4,)}, [3, 4], FinishReason.STOP, 4),
        ([3, 9, 4, 5], {"stop_token_ids": (9,), "ignore_eos": True}, [3, 9], FinishReason.STOP, 9),
        ([3] * 99, {}, [3] * 8, FinishReason.LENGTH, None),
    ],
)
@pytest.mark.parametrize("size", [1, 3])
async def test_outputs_end_as_in_the_core(
    script: list[int], params: Any, tokens: list[int], reason: FinishReason, stop_reason: int | None, size: int
) -> None:
    outputs = await play(ScriptedEngine(script, tokens_per_output=size, max_model_len=10), **params)
    assert [token for output in outputs for token in output.new_token_ids] == tokens
    assert [output.finish_reason for output in outputs[:-1]] == [None] * (len(outputs) - 1)
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == (reason, stop_reason)
    assert max(len(output.new_token_ids) for output in outputs) <= size


async def test_an_abort_interrupts_and_is_recorded_once() -> None:
    engine = ScriptedEngine([3] * 9, delay_s=60)
    stream = engine.submit(request())
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.01)
    assert engine.stats.num_running == 1
    stream.abort()
    stream.abort()
    assert (await waiting).finish_reason is FinishReason.ABORT
    assert engine.aborted == ["r"]
    assert engine.stats.num_running == 0


async def test_a_failure_comes_after_its_tokens() -> None:
    outputs = await play(ScriptedEngine([3] * 9, failure=ScriptedFailure(after_tokens=2, message="no luck")))
    assert [output.new_token_ids for output in outputs] == [[3], [3], []]
    assert (outputs[-1].finish_reason, outputs[-1].error) == (FinishReason.ERROR, "no luck")


async def test_a_dead_engine_fails_every_stream_and_call() -> None:
    engine = ScriptedEngine([3] * 9, delay_s=60)
    stream = engine.submit(request())
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.01)
    engine.die("gone")
    with pytest.raises(EngineDeadError, match="gone"):
        await waiting
    with pytest.raises(EngineDeadError):
        await engine.call("anything")


async def test_logprobs_and_calls_are_answered() -> None:
    engine = ScriptedEngine([3], num_cached_tokens=1)
    engine.call_results["double"] = 4
    (output, *_) = await play(engine, logprobs=2)
    assert output.logprobs is not None
    assert len(output.logprobs[0].token_ids) == 3
    assert output.num_cached_tokens == 1
    assert await engine.call("double", 2) == 4
    assert engine.calls == [("double", (2,))]
