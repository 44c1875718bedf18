from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from corefw.errors import ContextLengthError, EngineDeadError, EngineError, RequestError
from corefw.frontend.output_processor import GenerationUpdate
from corefw.frontend.renderer import Renderer
from corefw.frontend.seeds import output_seed
from corefw.frontend.text_engine import TextEngine
from corefw.messages.outputs import FinishReason
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.testing.scripted_engine import ScriptedEngine, ScriptedFailure
from tests.frontend.vocabularies import END, byte_level

PROMPT = [5, 6, 7, 8]
TOKENIZER = byte_level()


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, parse_special=True)


async def collect(updates: AsyncIterator[GenerationUpdate]) -> dict[int, list[GenerationUpdate]]:
    found: dict[int, list[GenerationUpdate]] = {}
    async for update in updates:
        found.setdefault(update.index, []).append(update)
    return found


def text_of(updates: list[GenerationUpdate]) -> str:
    return "".join(update.text for update in updates)


def texts(found: dict[int, list[GenerationUpdate]]) -> list[str]:
    return [text_of(found[index]) for index in sorted(found)]


async def test_text_comes_token_by_token_and_ends_with_a_reason(small_renderer: Renderer) -> None:
    engine = ScriptedEngine(encode("hello world🙂<|im_end|>never"))
    found = await collect(TextEngine(engine, small_renderer).generate(PROMPT, SamplingParams()))
    assert [update.text for update in found[0]] == ["hello", " world", "", "", "", "🙂", ""]
    assert [update.finish_reason for update in found[0]] == [None] * 6 + [FinishReason.STOP]
    assert found[0][0].num_prompt_tokens == 4
    assert engine.aborted == []
    assert engine.running == {}


async def test_the_core_gets_a_complete_request(small_renderer: Renderer) -> None:
    engine = ScriptedEngine([], max_model_len=20)
    text_engine = TextEngine(engine, small_renderer)
    params = SamplingParams(temperature=0.5, top_k=3)
    updates = text_engine.generate(PROMPT, params, priority=3, cache_salt="salt", extra={"a": 1}, request_id="mine")
    await collect(updates)
    (request,) = engine.requests
    assert request.prompt_ids == PROMPT
    assert (request.params.temperature, request.params.top_k, request.params.n) == (0.5, 3, 1)
    assert request.params.max_tokens == 16
    assert request.params.seed is not None
    assert (request.eos_ids, request.priority, request.cache_salt, request.extra) == ((END,), 3, "salt", {"a": 1})
    assert request.arrival_s > 0
    assert "mine" not in request.request_id


async def test_ids_in_the_core_are_never_the_clients(small_renderer: Renderer) -> None:
    engine = ScriptedEngine(encode("hello"))
    text_engine = TextEngine(engine, small_renderer)
    both = [text_engine.generate(PROMPT, SamplingParams(n=2), request_id="same") for _ in range(2)]
    await asyncio.gather(*(collect(updates) for updates in both))
    assert len({request.request_id for request in engine.requests}) == 4


async def test_requests_without_a_seed_get_different_ones(small_renderer: Renderer) -> None:
    engine = ScriptedEngine([])
    for _ in range(20):
        await collect(TextEngine(engine, small_renderer).generate(PROMPT, SamplingParams()))
    assert len({request.params.seed for request in engine.requests}) == 20


def by_seed(request: EngineCoreRequest) -> list[int]:
    assert request.params.seed is not None
    return encode(f"hello {request.params.seed % 1000}")


async def test_n_outputs_are_seeded_apart_and_the_same_every_time(small_renderer: Renderer) -> None:
    engine = ScriptedEngine(by_seed, delay_s=0.001)
    text_engine = TextEngine(engine, small_renderer)
    first, again = [texts(await collect(text_engine.generate(PROMPT, SamplingParams(n=5, seed=7)))) for _ in range(2)]
    assert first == again == [f"hello {output_seed(7, i) % 1000}" for i in range(5)]
    alone = await collect(text_engine.generate(PROMPT, SamplingParams(seed=7)))
    assert texts(alone) == first[:1]


async def test_every_one_of_n_outputs_has_one_end(small_renderer: Renderer) -> None:
    engine = ScriptedEngine(lambda request: encode("hello world" * (1 + len(engine.requests) % 3)))
    found = await collect(TextEngine(engine, small_renderer).generate(PROMPT, SamplingParams(n=4)))
    assert sorted(found) == [0, 1, 2, 3]
    for updates in found.values():
        assert [update.finish_reason is not None for update in updates] == [False] * (len(updates) - 1) + [True]


async def test_a_stop_string_ends_the_output_and_aborts_the_core(small_renderer: Renderer) -> None:
    engine = ScriptedEngine(encode("hello world hello world hello"), tokens_per_output=2)
    found = await collect(TextEngine(engine, small_renderer).generate(PROMPT, SamplingParams(stop=("wor",))))
    assert (text_of(found[0]), found[0][-1].stop_reason) == ("hello ", "wor")
    assert found[0][-1].finish_reason is FinishReason.STOP
    assert engine.aborted == [engine.requests[0].request_id]
    assert sum(len(update.token_ids) for update in found[0]) == 2


async def test_a_stop_string_in_one_output_leaves_the_others_alone(small_renderer: Renderer) -> None:
    scripts = [encode("hello world"), encode("hello hello")]
    engine = ScriptedEngine(lambda request: scripts[len(engine.requests) - 1])
    found = await collect(TextEngine(engine, small_renderer).generate(PROMPT, SamplingParams(n=2, stop=("wor",))))
    assert sorted(texts(found)) == ["hello ", "hello hello"]


@pytest.mark.parametrize("n", [1, 3])
async def test_closing_aborts_everything_that_runs(small_renderer: Renderer, n: int) -> None:
    engine = ScriptedEngine(encode("hello" * 100), delay_s=0.001)
    updates = TextEngine(engine, small_renderer).generate(PROMPT, SamplingParams(n=n))
    async with contextlib.aclosing(updates):  # type: ignore[type-var]
        async for _ in updates:
            if len(engine.requests) == n:
                break
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.requests)
    assert len(engine.aborted) == n
    assert engine.running == {}


@pytest.mark.parametrize("n", [1, 3])
async def test_cancelling_who_waits_aborts_everything_that_runs(small_renderer: Renderer, n: int) -> None:
    engine = ScriptedEngine(encode("hello" * 100), delay_s=60)
    task = asyncio.create_task(collect(TextEngine(engine, small_renderer).generate(PROMPT, SamplingParams(n=n))))
    await asyncio.sleep(0.05)
    assert len(engine.requests) == n
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(engine.aborted) == n
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_nothing_runs_before_the_first_update_is_asked_for(small_renderer: Renderer) -> None:
    engine = ScriptedEngine(encode("hello"))
    updates = TextEngine(engine, small_renderer).generate(PROMPT, SamplingParams(n=2))
    await updates.aclose()  # type: ignore[attr-defined]
    assert engine.requests == []


@pytest.mark.parametrize("n", [1, 3])
async def test_an_error_of_one_output_ends_the_request(small_renderer: Renderer, n: int) -> None:
    engine = ScriptedEngine(encode("hello world"), failure=ScriptedFailure(after_tokens=1, message="no luck"))
    updates = TextEngine(engine, small_renderer).generate(PROMPT, SamplingParams(n=n))
    assert (await anext(updates)).text == "hello"
    with pytest.raises(EngineError, match="no luck"):
        await collect(updates)
    assert engine.running == {}


@pytest.mark.parametrize("n", [1, 3])
async def test_a_dead_engine_is_told_as_such(small_renderer: Renderer, n: int) -> None:
    engine = ScriptedEngine(encode("hello world"), failure=ScriptedFailure(after_tokens=1, dead=True))
    with pytest.raises(EngineDeadError, match="scripted failure"):
        await collect(TextEngine(engine, small_renderer).generate(PROMPT, SamplingParams(n=n)))
    assert engine.running == {}


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(19, None), (19, 1), (10, 10), (1, None)])
async def test_what_fits_the_context_runs(small_renderer: Renderer, num_prompt: int, max_tokens: int | None) -> None:
    engine = ScriptedEngine(encode("hello") * 50, max_model_len=20)
    params = SamplingParams(max_tokens=max_tokens)
    found = await collect(TextEngine(engine, small_renderer).generate([5] * num_prompt, params))
    assert sum(len(update.token_ids) for update in found[0]) == (max_tokens or 20 - num_prompt)
    assert found[0][-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "numbers"),
    [(20, None, ["20", "20"]), (21, 1, ["21", "20"]), (8, 17, ["20", "8", "17", "25"]), (19, 2, ["20", "19", "2"])],
)
def test_what_doesnt_fit_the_context_is_refused_at_once(
    small_renderer: Renderer, num_prompt: int, max_tokens: int | None, numbers: list[str]
) -> None:
    engine = ScriptedEngine([], max_model_len=20)
    with pytest.raises(ContextLengthError, match=".*".join(numbers)) as raised:
        TextEngine(engine, small_renderer).generate([5] * num_prompt, SamplingParams(max_tokens=max_tokens))
    assert raised.value.code == "context_length_exceeded"
    assert engine.requests == []


@pytest.mark.parametrize(("prompt", "params"), [([], {}), ([5] * 15, {"min_tokens": 6})])
def test_a_request_that_can_never_be_right_is_refused_at_once(
    small_renderer: Renderer, prompt: list[int], params: dict[str, Any]
) -> None:
    with pytest.raises(RequestError):
        TextEngine(ScriptedEngine([], max_model_len=20), small_renderer).generate(prompt, SamplingParams(**params))


async def test_ignoring_end_tokens_is_left_to_the_core(small_renderer: Renderer) -> None:
    engine = ScriptedEngine(encode("hello<|im_end|>") * 20)
    params = SamplingParams(ignore_eos=True, max_tokens=9)
    found = await collect(TextEngine(engine, small_renderer).generate(PROMPT, params))
    assert text_of(found[0]) == "hello" * 5
    assert sum(len(update.token_ids) for update in found[0]) == 9


@pytest.mark.model
async def test_stops_cut_from_the_demo_models_text_are_exact(demo_renderer: Renderer) -> None:
    text = "The 3 quick brown foxes 🦊 jump over 日本語 and don't look back.\n\nThen they sleep."
    ids = demo_renderer.tokenizer.encode(text)
    for begin in range(0, len(text), 3):
        for length in (1, 2, 5, 11):
            stop = text[begin : begin + length]
            engine = ScriptedEngine(ids, tokens_per_output=1 + begin % 3)
            found = await collect(TextEngine(engine, demo_renderer).generate(PROMPT, SamplingParams(stop=(stop,))))
            assert text_of(found[0]) == text[: text.find(stop)]
            assert found[0][-1].stop_reason == stop
