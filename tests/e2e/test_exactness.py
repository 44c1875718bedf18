"""The demo model in float32 gives transformers' tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from corefw.engine.llm_engine import LLMEngine
from corefw.messages.sampling import SamplingParams
from tests.e2e.driver import open_engine, renderer_of, request, run, tokens
from tests.e2e.prompts import MORE_PROMPTS, PROMPTS
from tests.e2e.reference import forced_logits, greedy, reference_model
from tests.models.threads import every_core  # noqa: F401

pytestmark = pytest.mark.model
NUM_TOKENS = 64


@pytest.fixture(scope="module")
def engine() -> Iterator[LLMEngine]:
    with open_engine() as running:
        yield running


@pytest.fixture(scope="module")
def prompts(engine: LLMEngine) -> list[list[int]]:
    renderer = renderer_of(engine.config)
    return [renderer.render_text(text, param="prompt") for text in PROMPTS]


@pytest.fixture(scope="module")
def reference(engine: LLMEngine):
    return reference_model(Path(engine.config.model_info.files.weights[0]))


@pytest.fixture(scope="module")
def outputs(engine: LLMEngine, prompts: list[list[int]]) -> dict[str, list[int]]:
    return tokens(engine, [request(str(i), ids) for i, ids in enumerate(prompts)])


@pytest.mark.parametrize("num_prompts", [3, pytest.param(len(PROMPTS), marks=pytest.mark.slow)])
def test_free_running_greedy_equals_transformers(outputs, prompts, reference, num_prompts: int) -> None:
    """Of the others it follows from the next test, but for what transformers' own cache does to them."""
    expected = greedy(reference, prompts[:num_prompts], NUM_TOKENS)
    for index, tokens_of_one in enumerate(expected):
        assert outputs[str(index)] == tokens_of_one, PROMPTS[index]


@pytest.mark.slow
def test_two_ranks_with_six_and_three_query_heads_give_the_same_tokens(outputs, prompts) -> None:
    few = {str(index): prompts[index] for index in range(3)}
    with open_engine(tensor_parallel_size=2, kv_cache_memory=64 * 2**20) as ranks:
        assert tokens(ranks, [request(name, ids) for name, ids in few.items()]) == {name: outputs[name] for name in few}


@pytest.mark.slow
def test_free_running_greedy_equals_transformers_for_more_prompts(engine, reference) -> None:
    renderer = renderer_of(engine.config)
    prompts = [renderer.render_text(text, param="prompt") for text in MORE_PROMPTS]
    outputs = tokens(engine, [request(str(i), ids) for i, ids in enumerate(prompts)])
    expected = greedy(reference, prompts, NUM_TOKENS)
    for index, text in enumerate(MORE_PROMPTS):
        assert outputs[str(index)] == expected[index], text


def test_teacher_forced_argmax_equals_transformers(outputs, prompts, reference) -> None:
    for index, prompt in enumerate(prompts):
        ours = outputs[str(index)]
        logits = forced_logits(reference, prompt + ours)
        theirs = logits[len(prompt) - 1 : -1].argmax(-1).tolist()
        assert ours == theirs, PROMPTS[index]


def test_logprobs_equal_those_of_transformers(engine, prompts, reference) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=16, seed=0, ignore_eos=True, logprobs=5)
    result = run(engine, [request("lp", prompts[1], params)])["lp"]
    logits = forced_logits(reference, prompts[1] + result.token_ids)
    expected = torch.log_softmax(logits[len(prompts[1]) - 1 : -1], -1)
    assert len(result.logprobs) == 16
    for position, entry in enumerate(result.logprobs):
        assert entry.token_ids[0] == result.token_ids[position]
        assert entry.rank == 1
        top = expected[position].topk(5)
        assert entry.token_ids[1:] == top.indices.tolist()
        torch.testing.assert_close(torch.tensor(entry.logprobs[1:]), top.values, atol=1e-3, rtol=0)
