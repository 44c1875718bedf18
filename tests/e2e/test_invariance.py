"""Tokens depend on the request alone: not on batch, chunks, cache or a preemption, nor on where it was resumed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from corefw.engine.llm_engine import LLMEngine
from corefw.frontend.renderer import Renderer

from corefw.messages.sampling import SamplingParams
from tests.e2e.driver import Result, open_engine, request, run, tokens
from tests.e2e.prompts import PROMPTS

pytestmark = pytest.mark.model
NUM_TOKENS = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, seed=0, ignore_eos=True)
SEEDED = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=NUM_TOKENS, seed=1234, ignore_eos=True)


@pytest.fixture(scope="module")
def engine() -> Iterator[LLMEngine]:
    with open_engine() as running:
        yield running


@pytest.fixture(scope="module")
def prompts(engine: LLMEngine) -> list[list[int]]:
    config = engine.core.config
    renderer = Renderer(config.model_info, config.model, config.frontend)
    return [renderer.render_text(text, param="prompt") for text in PROMPTS]


@pytest.fixture(scope="module")
def solo(engine: LLMEngine, prompts) -> dict[str, list[list[int]]]:
    """Each prompt alone on a cold cache."""
    results: dict[str, list[list[int]]] = {"greedy": [], "seeded": []}
    for prompt in prompts:
        for name, params in (("greedy", GREEDY), ("seeded", SEEDED)):
            assert engine.core.call("reset_prefix_cache", ())
            results[name].append(tokens(engine, [request("solo", prompt, params)])["solo"])
    return results


def _mixed(prompts, count: int) -> list:
    chosen = [(i, i % len(prompts)) for i in range(count)]
    return [request(f"{i}", prompts[p], GREEDY if i % 2 == 0 else SEEDED) for i, p in chosen]


def _expected(solo, index: int) -> list[int]:
    return solo["greedy" if index % 2 == 0 else "seeded"][index % len(PROMPTS)]


def test_seeded_sampling_differs_from_greedy_and_between_seeds(engine, prompts, solo) -> None:
    other = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=NUM_TOKENS, seed=99, ignore_eos=True)
    again = tokens(engine, [request("a", prompts[1], SEEDED), request("b", prompts[1], other)])
    assert again["a"] == solo["seeded"][1]
    assert again["a"] != again["b"]
    assert solo["seeded"][1] != solo["greedy"][1]


@pytest.mark.parametrize("batch", [7, 32])
def test_tokens_do_not_depend_on_the_batch(engine, prompts, solo, batch: int) -> None:
    results = tokens(engine, _mixed(prompts, batch))
    for index in range(batch):
        assert results[str(index)] == _expected(solo, index), PROMPTS[index % len(PROMPTS)]


def test_tokens_do_not_depend_on_a_warm_cache(engine, prompts, solo) -> None:
    long = PROMPTS.index(max(PROMPTS, key=len))
    run(engine, [request("warm", prompts[long])])
    again = run(engine, [request("again", prompts[long], GREEDY)])["again"]
    assert again.num_cached_tokens is not None
    assert again.num_cached_tokens > 0
    assert again.token_ids == solo["greedy"][long]


@pytest.mark.parametrize("budget", [16, 64])
def test_tokens_do_not_depend_on_the_chunk_budget(prompts, solo, budget: int) -> None:
    with open_engine(max_num_batched_tokens=budget, max_num_seqs=8) as engine:
        results = tokens(engine, _mixed(prompts, 16))
    for index in range(16):
        assert results[str(index)] == _expected(solo, index), PROMPTS[index]


@pytest.mark.parametrize("caching", [True, False])
def test_tokens_survive_preemption_with_logprobs(engine, prompts, solo, caching: bool) -> None:
    long = max(range(len(prompts)), key=lambda i: len(prompts[i]))
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, seed=0, ignore_eos=True, logprobs=3)
    plain = run(engine, [request("x", prompts[long], params)])["x"]
    needed = -(-(len(prompts[long]) + NUM_TOKENS) // 16)
    with open_engine(
        num_gpu_blocks_override=needed * 3 // 2 + 1, max_model_len=needed * 16, enable_prefix_caching=caching
    ) as small:
        # Different first tokens, so that the cache can't hold all of them at once.
        crowd = [request(f"{i}", prompts[long] if i % 2 == 0 else prompts[long][i:], params) for i in range(8)]
        results = run(small, crowd)
        stats = small.core.scheduler.stats()
        assert stats.num_preemptions > 0
        assert stats.kv_usage == 0.0
    for index in range(0, 8, 2):
        _assert_same(results[str(index)], plain)
    solo_others = run(engine, [request(f"{i}", prompts[long][i:], params) for i in range(1, 8, 2)])
    for name, result in solo_others.items():
        _assert_same(results[name], result)


def test_seeded_tokens_survive_preemption(engine, prompts, solo) -> None:
    long = max(range(len(prompts)), key=lambda i: len(prompts[i]))
    needed = -(-(len(prompts[long]) + NUM_TOKENS) // 16)
    with open_engine(
        num_gpu_blocks_override=needed * 3 // 2 + 1, max_model_len=needed * 16, enable_prefix_caching=False
    ) as small:
        results = tokens(small, [request(f"{i}", prompts[long], SEEDED) for i in range(6)])
        assert small.core.scheduler.stats().num_preemptions > 0
    assert all(ids == solo["seeded"][long] for ids in results.values())


@pytest.mark.parametrize("name", ["greedy", "seeded"])
def test_a_request_resumes_at_every_position(engine, prompts, solo, name: str) -> None:
    params = GREEDY if name == "greedy" else SEEDED
    whole = solo[name][1]
    batch = [request(f"{k}", prompts[1], params, prior=whole[:k]) for k in range(NUM_TOKENS)]
    results = tokens(engine, batch)
    for k in range(NUM_TOKENS):
        assert results[str(k)] == whole[k:], f"resumed after {k} tokens"


def test_encoding_every_message_changes_nothing(prompts, solo) -> None:
    with open_engine(encode_messages=True) as engine:
        results = tokens(engine, _mixed(prompts, 7))
    for index in range(7):
        assert results[str(index)] == _expected(solo, index)


def _assert_same(result: Result, expected: Result) -> None:
    assert result.token_ids == expected.token_ids
    assert result.logprobs == expected.logprobs
